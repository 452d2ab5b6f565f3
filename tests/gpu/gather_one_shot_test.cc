// ag_gemm of few tokens in one kernel on real GPUs: exact results at every kind of size, in calls behind each other and
// in replays; the gathered rows as a result, of k_slab too. With one GPU ranks share it (virtual ranks).
#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "overlace/ops/ag_gemm.h"
#include "overlace/ops/common.h"
#include "src/base/half.h"
#include "tests/gpu/support/gpu_ranks.h"

namespace overlace::test {
namespace {

struct Problem {
  int64_t m = 1, n = 8, k = 8;
  DType dtype = DType::bf16;
  bool bias = false;
  std::vector<int64_t> offsets{};  // of two ranks
  int64_t more = 0;                // columns that each rank has more than the one before
  int slabs = 0;                   // of k_slab; 0: one_shot
  bool keeps = false;              // the gathered rows
};

/// -1, 0 or 1: sums are exact in any order, and as bf16 where K is not long.
float value_of(int tensor, int64_t i) {
  uint64_t x = static_cast<uint64_t>(i) * 0x9e3779b97f4a7c15ull + static_cast<uint64_t>(tensor) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 29)) * 0x94d049bb133111ebull;
  return static_cast<float>((x >> 40) % 3) - 1;
}
std::vector<float> values(int tensor, int64_t first, int64_t count) {
  std::vector<float> out;
  for (int64_t i = first; i < first + count; ++i) out.push_back(value_of(tensor, i));
  return out;
}

/// One rank's operands and what it must get. Sites of other `set`s have other tokens and weights.
class Site {
 public:
  Site(GpuRank& gpu, Channel& channel, const Problem& p, int set) : gpu_(gpu), channel_(channel), p_(p) {
    p_.n += gpu.rank * p.more;
    if (gpu.size != 2) p_.offsets.clear();
    spec::OpSpec op;
    op.m = p_.m;
    op.ranks = gpu.size;
    op.row_offsets = p_.offsets;
    const std::vector<int64_t> off = spec::row_offsets(op);
    const size_t rank = static_cast<size_t>(gpu.rank);
    const int tokens = 1000 * set, weights = 1000 * set + 1 + gpu.rank;
    const std::vector<float> a = values(tokens, 0, p_.m * p_.k), b = values(weights, 0, p_.n * p_.k);
    args_.a_shard =
        upload(values(tokens, off[rank] * p_.k, (off[rank + 1] - off[rank]) * p_.k), off[rank + 1] - off[rank], p_.k);
    args_.b = upload(b, p_.n, p_.k).transposed();
    args_.c = upload(std::vector<float>(static_cast<size_t>(p_.m * p_.n), NAN), p_.m, p_.n);
    args_.row_offsets = p_.offsets;
    const std::vector<float> bias = values(500, gpu.rank * 3, p_.n);
    if (p_.bias) args_.bias = TensorView::contiguous(upload(bias, 1, p_.n).data, p_.dtype, {p_.n});
    want_.assign(static_cast<size_t>(p_.m * p_.n), 0);
    for (int64_t i = 0; i < p_.m; ++i) {
      for (int64_t j = 0; j < p_.n; ++j) {
        float sum = p_.bias ? bias[static_cast<size_t>(j)] : 0;
        for (int64_t k = 0; k < p_.k; ++k)
          sum += a[static_cast<size_t>(i * p_.k + k)] * b[static_cast<size_t>(j * p_.k + k)];
        want_[static_cast<size_t>(i * p_.n + j)] = rounded(sum);
      }
    }
    tokens_ = a;
    if (p_.keeps) args_.a = upload(std::vector<float>(tokens_.size(), NAN), p_.m, p_.k);
    schedule_ =
        spec::make_schedule(ops::op_spec(channel, args_), p_.slabs > 0 ? "k_slab" : "one_shot", std::max(1, p_.slabs));
  }

  std::string why_not() const { return ops::supports(channel_, ops::op_spec(channel_, args_), schedule_).reason; }
  void run() { ops::run(channel_, args_, schedule_); }
  void spoil() {
    const size_t element = dtype_bytes(p_.dtype);
    ASSERT_EQ(cudaMemsetAsync(args_.c.data, 0xff, want_.size() * element, gpu_.stream), cudaSuccess);
    if (!p_.keeps) return;
    ASSERT_EQ(cudaMemsetAsync(args_.a.data, 0xff, tokens_.size() * element, gpu_.stream), cudaSuccess);
  }
  void check(const std::string& what) {
    std::vector<char> out(want_.size() * dtype_bytes(p_.dtype));
    gpu_.fetch(out.data(), args_.c.data, out.size());
    int64_t wrong = 0;
    for (size_t i = 0; i < want_.size(); ++i)
      wrong += base::load_element(out.data(), p_.dtype, static_cast<int64_t>(i)) != want_[i];
    EXPECT_EQ(wrong, 0) << what << ", rank " << gpu_.rank << ", M " << p_.m << " N " << p_.n << " K " << p_.k << " "
                        << dtype_name(p_.dtype) << (p_.bias ? " bias" : "") << (p_.offsets.empty() ? "" : " ragged");
    if (p_.keeps) check_gathered(what);
    gpu_.team.barrier();  // what waits for a GPU must not meet the next call of a rank that shares it
  }

 private:
  void check_gathered(const std::string& what) {
    std::vector<char> out(tokens_.size() * dtype_bytes(p_.dtype));
    gpu_.fetch(out.data(), args_.a.data, out.size());
    int64_t wrong = 0;
    for (size_t i = 0; i < tokens_.size(); ++i)
      wrong += base::load_element(out.data(), p_.dtype, static_cast<int64_t>(i)) != static_cast<double>(tokens_[i]);
    EXPECT_EQ(wrong, 0) << "gathered rows, " << what << ", rank " << gpu_.rank << ", M " << p_.m << " K " << p_.k;
  }
  double rounded(float x) const {
    char at[8];
    base::store_element(at, p_.dtype, 0, static_cast<double>(x));
    return base::load_element(at, p_.dtype, 0);
  }
  TensorView upload(const std::vector<float>& from, int64_t rows, int64_t cols) {
    std::vector<char> host(from.size() * dtype_bytes(p_.dtype));
    for (size_t i = 0; i < from.size(); ++i)
      base::store_element(host.data(), p_.dtype, static_cast<int64_t>(i), static_cast<double>(from[i]));
    char* const out = gpu_.device_array<char>(std::max<size_t>(host.size(), 16));
    gpu_.store(out, host.data(), host.size());
    return TensorView::contiguous(out, p_.dtype, {rows, cols});
  }

  GpuRank& gpu_;
  Channel& channel_;
  Problem p_;
  ops::AgGemmArgs args_;
  std::vector<float> tokens_;  // of all ranks
  std::vector<double> want_;
  spec::Schedule schedule_;
};

/// Shards of all lengths, 0 too; columns of other than whole tiles, K of other than whole stages, more tiles than CTAs
/// and fewer. On 132 SMs and two ranks N 5128 and 7176, on 66 N 4160, on 24 N 1288 take one
/// CTA a tile, the others of at most 128 tokens two.
const std::vector<Problem>& problems() {
  static const std::vector<Problem> all = {{1, 8, 8},
                                           {1, 136, 72, DType::bf16, true},
                                           {2, 4096, 1032, DType::bf16, false, {}, 72},
                                           {3, 1000, 264, DType::fp16, true, {0, 3, 3}},
                                           {8, 128, 136, DType::bf16, false, {0, 0, 8}, 8},
                                           {9, 192, 1032},
                                           {16, 520, 200, DType::bf16, true},
                                           {17, 256, 64, DType::fp16, true, {0, 5, 17}, 136},
                                           {33, 392, 520},
                                           {40, 72, 2048, DType::fp16},
                                           {64, 1288, 328, DType::bf16, true, {0, 63, 64}},
                                           {16, 5128, 520, DType::bf16, true},
                                           {33, 7176, 136, DType::fp16},
                                           {64, 9032, 136},
                                           {64, 8, 4096},
                                           {65, 392, 520, DType::fp16, true, {0, 1, 65}},
                                           {100, 5128, 136, DType::bf16, true, {0, 100, 100}},
                                           {128, 1288, 328, DType::bf16, false, {}, 72},
                                           {128, 4160, 72, DType::fp16, true},
                                           {129, 136, 1032, DType::fp16},
                                           {200, 5128, 136, DType::bf16, true, {0, 63, 200}, 128, 0, true},
                                           {256, 1096, 264},
                                           {17, 256, 64, DType::fp16, true, {0, 5, 17}, 0, 0, true},
                                           {64, 520, 264, DType::bf16, false, {}, 0, 0, true},
                                           {300, 392, 520, DType::bf16, false, {0, 100, 300}, 0, 4, true},
                                           {512, 520, 136, DType::fp16, false, {}, 8, 1, true}};
  return all;
}

/// Sites of one schedule by turns. Three, where there are two buffers: so each buffer gets the tokens of all.
using Sites = std::vector<std::unique_ptr<Site>>;
Sites make_sites(GpuRank& gpu, Channel& channel, const Problem& problem) {
  Sites out;
  for (int set = 0; set < 3; ++set) out.push_back(std::make_unique<Site>(gpu, channel, problem, set));
  return out;
}

void check_all(GpuRank& gpu, Channel& channel) {
  for (const Problem& problem : problems()) {
    const Sites sites = make_sites(gpu, channel, problem);
    ASSERT_EQ(sites[0]->why_not(), "");
    for (int call = 0; call < 5; ++call) {
      Site& site = *sites[static_cast<size_t>(call) % 3];
      site.spoil();
      site.run();
      site.check("call " + std::to_string(call));
    }
    for (int call = 0; call < 60; ++call) {
      if (call % 20 == 7 * gpu.rank) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      sites[static_cast<size_t>(call) % 3]->run();
    }
    for (const auto& site : sites) site->check("calls behind each other");
  }
}

int ranks() { return gpu_count() < 4 ? 2 : 4; }

TEST(GpuGatherOneShot, GivesExactResultsOnAllSms) {
  OVERLACE_NEED_GPUS(1);
  run_gpu_threads(ranks(), [](GpuRank& gpu) { check_all(gpu, gpu.channel); });
}

TEST(GpuGatherOneShot, GivesExactResultsOnAPartOfTheSms) {
  OVERLACE_NEED_GPUS(1);
  run_gpu_threads(
      ranks(), [](GpuRank& gpu) { check_all(gpu, gpu.team.channel(StreamRef::cuda(gpu.stream), {.sm_budget = 24})); });
}

TEST(GpuGatherOneShot, IsReplayedFromAGraphBetweenEagerCalls) {
  OVERLACE_NEED_GPUS(1);
  run_gpu_threads(ranks(), [](GpuRank& gpu) {
    const Problem replayed[] = {{1, 1000, 264},
                                {40, 1288, 520},
                                {40, 520, 264, DType::bf16, false, {}, 0, 0, true},
                                {200, 1288, 264, DType::bf16, true, {}, 0, 0, true},
                                {300, 392, 520, DType::bf16, false, {0, 100, 300}, 0, 4, true}};
    for (const Problem& problem : replayed) {
      const Sites sites = make_sites(gpu, gpu.channel, problem);
      for (const auto& site : sites) {
        site->run();
        site->check("before");
      }
      cudaGraph_t graph = nullptr;
      cudaGraphExec_t exec = nullptr;
      ASSERT_EQ(cudaStreamBeginCapture(gpu.stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
      for (const auto& site : sites) site->run();  // an odd number: replays begin in either buffer
      ASSERT_EQ(cudaStreamEndCapture(gpu.stream, &graph), cudaSuccess);
      ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
      for (int round = 0; round < 4; ++round) {
        for (const auto& site : sites) site->spoil();
        for (int replay = 0; replay < 200; ++replay) ASSERT_EQ(cudaGraphLaunch(exec, gpu.stream), cudaSuccess);
        for (const auto& site : sites) site->check("replays");
        sites[0]->spoil();
        sites[0]->run();
        sites[0]->check("eager behind replays");
      }
      EXPECT_CUDA(cudaGraphExecDestroy(exec));
      EXPECT_CUDA(cudaGraphDestroy(graph));
    }
  });
}

/// Gated results are left to other families, more rows too.
TEST(GpuGatherOneShot, SaysWhatItHasNoKernelFor) {
  OVERLACE_NEED_GPUS(1);
  run_gpu_threads(2, [](GpuRank& gpu) {
    const auto reason = [&](int64_t m, spec::Activation activation) {
      spec::OpSpec op;
      op.op = "ag_gemm";
      op.m = m;
      op.n = op.k = 64;
      op.ranks = gpu.size;
      op.activation = activation;
      return ops::supports(gpu.channel, op, spec::make_schedule(op, "one_shot")).reason;
    };
    EXPECT_EQ(reason(256, spec::Activation::none), "");
    EXPECT_NE(reason(257, spec::Activation::none).find("M 257; wanted: at most 256"), std::string::npos);
    EXPECT_NE(reason(8, spec::Activation::swiglu).find("swiglu of few rows"), std::string::npos);
  });
}

}  // namespace
}  // namespace overlace::test
