// gemm_ar and gemm_rs of few tokens in one kernel on real GPUs: exact sums at every kind of size, in calls behind each
// other and in replays; what is no number; a rank that does not call. With one GPU ranks share it (virtual ranks).
#include <chrono>
#include <cmath>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "overlace/ops/common.h"
#include "overlace/ops/gemm_ar.h"
#include "overlace/ops/gemm_rs.h"
#include "src/base/format.h"
#include "src/base/half.h"
#include "tests/gpu/support/gpu_ranks.h"

namespace overlace::test {
namespace {

struct Problem {
  int64_t m = 1, n = 8, k = 8;
  DType dtype = DType::bf16;
  bool bias = false;
  std::string op = "gemm_ar";
  bool ragged = false;   // rows of gemm_rs
  bool special = false;  // NaN and infinities among the operands

  std::string text() const {
    return base::format("{} M {} N {} K {} {}{}{}{}", op, m, n, k, dtype_name(dtype), bias ? " bias" : "",
                        ragged ? " ragged" : "", special ? " special" : "");
  }
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

/// A rank's a (M, K) and b (N, K). Special: a token of NaN, a column of NaN and infinities, and one that all ranks
/// have, in which infinities meet.
struct Inputs {
  std::vector<float> a, b;
  Inputs(const Problem& p, int rank) : a(values(2 * rank, p.m * p.k)), b(values(2 * rank + 1, p.n * p.k)) {
    if (!p.special) return;
    a[static_cast<size_t>(rank % p.m * p.k)] = NAN;
    b[static_cast<size_t>((p.n / 2 + rank) * p.k + 1)] = INFINITY;
    b[static_cast<size_t>(3 * p.k + 2)] = rank % 2 == 0 ? INFINITY : -INFINITY;
  }
};

std::vector<int64_t> offsets_of(const Problem& p, int ranks) {
  std::vector<int64_t> out;
  for (int64_t r = 0; r <= ranks; ++r) out.push_back(p.ragged ? p.m * r * r / (ranks * ranks) : p.m * r / ranks);
  return out;
}

/// One rank's operands and what it must get.
class Site {
 public:
  Site(GpuRank& gpu, Channel& channel, const Problem& p) : gpu_(gpu), channel_(channel), p_(p), rows_(p.m) {
    const Inputs mine(p, gpu.rank);
    args_.a = upload(mine.a, p.m, p.k);
    args_.b = upload(mine.b, p.n, p.k).transposed();
    if (p.op == "gemm_rs") {
      args_.row_offsets = offsets_of(p, gpu.size);
      first_ = args_.row_offsets[static_cast<size_t>(gpu.rank)];
      rows_ = args_.row_offsets[static_cast<size_t>(gpu.rank) + 1] - first_;
    }
    around_ = gpu.device_array<char>(bytes(rows_ + 2 * kGuard));
    args_.out = TensorView::contiguous(around_ + bytes(kGuard), p.dtype, {rows_, p.n});
    const std::vector<float> bias = values(100, p.n);
    if (p.bias) args_.bias = TensorView::contiguous(upload(bias, 1, p.n).data, p.dtype, {p.n});
    want_.assign(static_cast<size_t>(p.m * p.n), 0);
    for (int r = 0; r < gpu.size; ++r) {
      const Inputs in(p, r);
      for (int64_t i = 0; i < p.m; ++i)
        for (int64_t j = 0; j < p.n; ++j)
          for (int64_t k = 0; k < p.k; ++k)
            want_[static_cast<size_t>(i * p.n + j)] +=
                in.a[static_cast<size_t>(i * p.k + k)] * in.b[static_cast<size_t>(j * p.k + k)];
    }
    for (size_t i = 0; p.bias && i < want_.size(); ++i) want_[i] += bias[i % static_cast<size_t>(p.n)];
    schedule_ = spec::make_schedule(op(), "one_shot");
    spoil();
  }

  std::string why_not() const { return ops::supports(channel_, op(), schedule_).reason; }
  void run() {
    if (p_.op == "gemm_rs") {
      ops::run(channel_, args_, schedule_);
    } else {
      ops::run(channel_, of_all_reduce(), schedule_);
    }
  }
  void spoil() { ASSERT_EQ(cudaMemsetAsync(around_, 0xff, bytes(rows_ + 2 * kGuard), gpu_.stream), cudaSuccess); }
  void check(const std::string& what) {
    std::vector<char> got(bytes(rows_ + 2 * kGuard));
    gpu_.fetch(got.data(), around_, got.size());
    int64_t wrong = 0, beside = 0;
    for (int64_t i = 0; i < rows_ * p_.n; ++i) {
      const double x = base::load_element(got.data() + bytes(kGuard), p_.dtype, i);
      const double want = static_cast<double>(want_[static_cast<size_t>(first_ * p_.n + i)]);
      wrong += !(std::isnan(want) ? std::isnan(x) : x == want);
    }
    for (size_t i = 0; i < bytes(kGuard); ++i) beside += (got[i] != '\xff') + (got[got.size() - 1 - i] != '\xff');
    EXPECT_EQ(wrong, 0) << what << ", rank " << gpu_.rank << ", " << p_.text();
    EXPECT_EQ(beside, 0) << "bytes beside the result, " << what << ", rank " << gpu_.rank << ", " << p_.text();
    gpu_.team.barrier();  // what waits for a GPU must not meet the next call of a rank that shares it
  }

 private:
  static constexpr int64_t kGuard = 64;  // rows
  size_t bytes(int64_t rows) const { return static_cast<size_t>(rows * p_.n) * dtype_bytes(p_.dtype); }
  ops::GemmArArgs of_all_reduce() const { return {.a = args_.a, .b = args_.b, .out = args_.out, .bias = args_.bias}; }
  spec::OpSpec op() const {
    return p_.op == "gemm_rs" ? ops::op_spec(channel_, args_) : ops::op_spec(channel_, of_all_reduce());
  }
  TensorView upload(const std::vector<float>& from, int64_t rows, int64_t cols) {
    std::vector<char> host(from.size() * dtype_bytes(p_.dtype));
    for (size_t i = 0; i < from.size(); ++i)
      base::store_element(host.data(), p_.dtype, static_cast<int64_t>(i), static_cast<double>(from[i]));
    for (size_t i = 0; i < from.size(); ++i)
      if (std::isnan(from[i])) std::memset(&host[i * dtype_bytes(p_.dtype)], 0xff, dtype_bytes(p_.dtype));
    char* const out = gpu_.device_array<char>(host.size());
    gpu_.store(out, host.data(), host.size());
    return TensorView::contiguous(out, p_.dtype, {rows, cols});
  }

  GpuRank& gpu_;
  Channel& channel_;
  Problem p_;
  int64_t first_ = 0, rows_;
  ops::GemmRsArgs args_;
  char* around_ = nullptr;  // the result and kGuard rows on either side
  std::vector<float> want_;
  spec::Schedule schedule_;
};

/// Tokens of other than whole chunks of 8 and tiles, columns of other than whole tiles, K of other than whole stages,
/// more tiles than CTAs; with gemm_rs owners of no tokens, and those that share a chunk. On 132, 66 or 24 SMs two CTAs
/// share each of few tiles along K, up to 128 tokens: not at N 5128, 4160 or 1288. With more than 64 tokens two CTAs
/// else share loads, and where tiles are odd in number (N 72, 1288, 4160, 5128) the last of them has none.
std::vector<Problem> problems() {
  std::vector<Problem> all = {{1, 8, 8},
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
                              {64, 4160, 136},
                              {64, 5128, 136, DType::fp16, true},
                              {65, 72, 264, DType::fp16},
                              {66, 4224, 72},
                              {72, 5128, 136, DType::bf16, true},
                              {96, 1288, 136, DType::bf16, true},
                              {127, 4160, 72, DType::fp16, true},
                              {128, 520, 328},
                              {128, 8456, 40},
                              {129, 136, 1032, DType::bf16, true},
                              {200, 392, 264, DType::fp16, true},
                              {255, 5128, 40},
                              {256, 8, 2048},
                              {256, 1096, 136, DType::bf16, true},
                              {256, 8520, 24, DType::fp16}};
  const size_t count = all.size();
  for (const bool ragged : {false, true}) {
    for (size_t i = 0; i < count; ++i) {
      all.push_back(all[i]);
      all.back().op = "gemm_rs";
      all.back().ragged = ragged;
    }
  }
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
    for (const Problem& problem :
         {Problem{1, 1000, 264}, Problem{40, 1288, 520}, Problem{2, 1000, 264, DType::bf16, false, "gemm_rs"},
          Problem{45, 1288, 520, DType::fp16, true, "gemm_rs", /*ragged=*/true}, Problem{100, 5128, 136},
          Problem{256, 1288, 136}, Problem{200, 1288, 264, DType::fp16, true, "gemm_rs", /*ragged=*/true}}) {
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

/// Words that have not come are NaNs of all ones: no operand makes a sender send one.
TEST(GpuOneShot, WhatIsNoNumberArrivesToo) {
  OVERLACE_NEED_GPUS(1);
  run_gpu_threads(ranks(), [](GpuRank& gpu) {
    for (const char* op : {"gemm_ar", "gemm_rs"}) {
      for (const DType dtype : {DType::bf16, DType::fp16}) {
        for (const int64_t m : {5, 40, 90, 170}) {
          Site site(gpu, gpu.channel, {m, 520, 72, dtype, false, op, false, /*special=*/true});
          ASSERT_EQ(site.why_not(), "");
          for (int call = 0; call < 4; ++call) {
            site.spoil();
            site.run();
            site.check("call " + std::to_string(call));
          }
        }
      }
    }
  });
}

struct Missed {
  const char* op;
  int64_t m;
};
class GpuOneShotFailure : public testing::TestWithParam<Missed> {};

TEST_P(GpuOneShotFailure, ARankThatDoesNotCallIsATimeoutOfTheOthers) {
  OVERLACE_NEED_GPUS(1);
  GpuOptions options;
  options.timeout_ms = 3000;
  options.checks_end = false;
  run_gpu_threads(2, [](GpuRank&) {});  // contexts exist from here on: opening fits the short deadline
  const auto begin = std::chrono::steady_clock::now();
  run_gpu_threads(
      2,
      [](GpuRank& gpu) {
        Site site(gpu, gpu.channel, {GetParam().m, 520, 72, DType::bf16, false, GetParam().op});
        site.run();
        site.check("before");
        Errc caught = Errc::ok;
        std::string text;
        try {
          if (gpu.rank == 0) {
            for (int call = 0; call < 3; ++call) site.run();
            EXPECT_CUDA(cudaStreamSynchronize(gpu.stream));
            gpu.runtime.check();
          } else {  // told by the other
            for (int i = 0; i < 2000; ++i) {
              gpu.runtime.check();
              std::this_thread::sleep_for(std::chrono::milliseconds(10));
            }
          }
        } catch (const Error& error) {
          caught = error.code();
          text = error.what();
        }
        if (gpu.rank == 0) {
          EXPECT_EQ(caught, Errc::timeout) << text;
          EXPECT_NE(text.find("rank 0 waited for rank 1"), std::string::npos) << text;
        }
        EXPECT_NE(caught, Errc::ok) << "rank " << gpu.rank;
        gpu.runtime.close();
      },
      options);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
  run_gpu_threads(2, [](GpuRank& gpu) {  // the same devices and contexts
    Site site(gpu, gpu.channel, {GetParam().m, 520, 72, DType::bf16, false, GetParam().op});
    site.run();
    site.check("afterwards");
  });
}

INSTANTIATE_TEST_SUITE_P(Operators, GpuOneShotFailure,
                         testing::Values(Missed{"gemm_ar", 40}, Missed{"gemm_rs", 40}, Missed{"gemm_ar", 240}),
                         [](const auto& test) { return base::format("{}_M{}", test.param.op, test.param.m); });

}  // namespace
}  // namespace overlace::test
