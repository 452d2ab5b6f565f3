// gemm_ar of few tokens in one kernel on real GPUs: exact sums at every kind of size, in calls behind each other and in
// replays. With one GPU ranks share it (virtual ranks).
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "overlace/ops/common.h"
#include "overlace/ops/gemm_ar.h"
#include "src/base/half.h"
#include "tests/gpu/support/gpu_ranks.h"

namespace overlace::test {
namespace {

struct Problem {
  int64_t m = 1, n = 8, k = 8;
  DType dtype = DType::bf16;
  bool bias = false;
};

/// -1, 0 or 1: sums are exact in any order, and as bf16.
float value_of(int tensor, int64_t i) {
  uint64_t x = static_cast<uint64_t>(i) * 0x9e3779b97f4a7c15ull + static_cast<uint64_t>(tensor) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 29)) * 0x94d049bb133111ebull;
  return static_cast<float>((x >> 40) % 3) - 1;
}
std::vector<float> values(int tensor, int64_t count) {
  std::vector<float> out;
  for (int64_t i = 0; i < count; ++i) out.push_back(value_of(tensor, i));
  return out;
}

/// One rank's operands and what all ranks must get.
class Site {
 public:
  Site(GpuRank& gpu, Channel& channel, const Problem& p) : gpu_(gpu), channel_(channel), p_(p) {
    args_.a = upload(values(2 * gpu.rank, p.m * p.k), p.m, p.k);
    args_.b = upload(values(2 * gpu.rank + 1, p.n * p.k), p.n, p.k).transposed();
    args_.out = upload(std::vector<float>(static_cast<size_t>(p.m * p.n), NAN), p.m, p.n);
    const std::vector<float> bias = values(100, p.n);
    if (p.bias) args_.bias = TensorView::contiguous(upload(bias, 1, p.n).data, p.dtype, {p.n});
    want_.assign(static_cast<size_t>(p.m * p.n), 0);
    for (int r = 0; r < gpu.size; ++r) {
      const std::vector<float> a = values(2 * r, p.m * p.k), b = values(2 * r + 1, p.n * p.k);
      for (int64_t i = 0; i < p.m; ++i)
        for (int64_t j = 0; j < p.n; ++j)
          for (int64_t k = 0; k < p.k; ++k)
            want_[static_cast<size_t>(i * p.n + j)] +=
                a[static_cast<size_t>(i * p.k + k)] * b[static_cast<size_t>(j * p.k + k)];
    }
    for (size_t i = 0; p.bias && i < want_.size(); ++i) want_[i] += bias[i % static_cast<size_t>(p.n)];
    schedule_ = spec::make_schedule(ops::op_spec(channel, args_), "one_shot");
  }

  std::string why_not() const { return ops::supports(channel_, ops::op_spec(channel_, args_), schedule_).reason; }
  void run() { ops::run(channel_, args_, schedule_); }
  void spoil() {
    ASSERT_EQ(cudaMemsetAsync(args_.out.data, 0xff, want_.size() * dtype_bytes(p_.dtype), gpu_.stream), cudaSuccess);
  }
  void check(const std::string& what) {
    std::vector<char> out(want_.size() * dtype_bytes(p_.dtype));
    gpu_.fetch(out.data(), args_.out.data, out.size());
    int64_t wrong = 0;
    for (size_t i = 0; i < want_.size(); ++i)
      wrong += base::load_element(out.data(), p_.dtype, static_cast<int64_t>(i)) != static_cast<double>(want_[i]);
    EXPECT_EQ(wrong, 0) << what << ", rank " << gpu_.rank << ", M " << p_.m << " N " << p_.n << " K " << p_.k << " "
                        << dtype_name(p_.dtype) << (p_.bias ? " bias" : "");
    gpu_.team.barrier();  // what waits for a GPU must not meet the next call of a rank that shares it
  }

 private:
  TensorView upload(const std::vector<float>& from, int64_t rows, int64_t cols) {
    std::vector<char> host(from.size() * dtype_bytes(p_.dtype));
    for (size_t i = 0; i < from.size(); ++i)
      base::store_element(host.data(), p_.dtype, static_cast<int64_t>(i), static_cast<double>(from[i]));
    char* const out = gpu_.device_array<char>(host.size());
    gpu_.store(out, host.data(), host.size());
    return TensorView::contiguous(out, p_.dtype, {rows, cols});
  }

  GpuRank& gpu_;
  Channel& channel_;
  Problem p_;
  ops::GemmArArgs args_;
  std::vector<float> want_;
  spec::Schedule schedule_;
};

/// Tokens of other than whole chunks of 8 and tiles, columns of other than whole tiles, K of other than whole stages,
/// more tiles than CTAs.
const std::vector<Problem>& problems() {
  static const std::vector<Problem> all = {{1, 8, 8},
                                           {1, 136, 72},
                                           {1, 4096, 1032},
                                           {3, 1000, 264, DType::fp16},
                                           {8, 128, 136},
                                           {9, 192, 1032},
                                           {16, 520, 200, DType::bf16, true},
                                           {17, 256, 64, DType::fp16, true},
                                           {33, 392, 520},
                                           {40, 72, 2048, DType::fp16},
                                           {64, 1288, 328, DType::bf16, true},
                                           {64, 4160, 136}};
  return all;
}

void check_all(GpuRank& gpu, Channel& channel) {
  for (const Problem& problem : problems()) {
    Site site(gpu, channel, problem);
    ASSERT_EQ(site.why_not(), "");
    for (int call = 0; call < 3; ++call) {
      site.spoil();
      site.run();
      site.check("call " + std::to_string(call));
    }
    for (int call = 0; call < 40; ++call) site.run();
    site.check("calls behind each other");
  }
}

int ranks() { return gpu_count() < 4 ? 2 : 4; }

TEST(GpuOneShot, GivesExactSumsOnAllSms) {
  OVERLACE_NEED_GPUS(1);
  run_gpu_threads(ranks(), [](GpuRank& gpu) { check_all(gpu, gpu.channel); });
}

TEST(GpuOneShot, GivesExactSumsOnAPartOfTheSms) {
  OVERLACE_NEED_GPUS(1);
  run_gpu_threads(
      ranks(), [](GpuRank& gpu) { check_all(gpu, gpu.team.channel(StreamRef::cuda(gpu.stream), {.sm_budget = 24})); });
}

TEST(GpuOneShot, IsReplayedFromAGraphBetweenEagerCalls) {
  OVERLACE_NEED_GPUS(1);
  run_gpu_threads(ranks(), [](GpuRank& gpu) {
    for (const Problem& problem : {Problem{1, 1000, 264}, Problem{40, 1288, 520}}) {
      Site site(gpu, gpu.channel, problem);
      site.run();
      site.check("before");
      cudaGraph_t graph = nullptr;
      cudaGraphExec_t exec = nullptr;
      ASSERT_EQ(cudaStreamBeginCapture(gpu.stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
      for (int call = 0; call < 3; ++call) site.run();  // an odd number: replays begin in either buffer
      ASSERT_EQ(cudaStreamEndCapture(gpu.stream, &graph), cudaSuccess);
      ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
      for (int round = 0; round < 4; ++round) {
        site.spoil();
        for (int replay = 0; replay < 25; ++replay) ASSERT_EQ(cudaGraphLaunch(exec, gpu.stream), cudaSuccess);
        site.check("replays");
        site.spoil();
        site.run();
        site.check("eager behind replays");
      }
      EXPECT_CUDA(cudaGraphExecDestroy(exec));
      EXPECT_CUDA(cudaGraphDestroy(graph));
    }
  });
}

}  // namespace
}  // namespace overlace::test
