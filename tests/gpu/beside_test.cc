// A fused kernel beside what others run on the same GPUs, queued in another order on each rank: an all-reduce of
// another communicator, another context. No order between streams is promised to NCCL or to us, so both must end, with
// the exact result: a fused kernel must not need all its CTAs at once. OVERLACE_TEST_TURNS says how often (default 50).
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "overlace/net_engine.h"
#include "src/base/format.h"
#include "tests/gpu/support/exact.h"
#include "tests/gpu/support/gpu_ranks.h"

namespace overlace::test {
namespace {

constexpr int kRanks = 2, kTurns = 50;

/// How often each pair is queued, one behind the other.
int turns() {
  const char* text = std::getenv("OVERLACE_TEST_TURNS");
  if (text == nullptr) return kTurns;
  char* end = nullptr;
  const int64_t turns = std::strtoll(text, &end, 10);
  EXPECT_TRUE(*end == '\0' && turns >= 1 && turns <= 1000000)
      << "OVERLACE_TEST_TURNS is \"" << text << "\", wanted 1 to 1000000";
  return static_cast<int>(turns);
}

struct Family {
  const char* op;
  const char* family;
  int degree;
  int64_t m = 2048, n = 8192, k = 4096;
};
/// Every schedule that is one kernel, and some that are several: those pass since ever.
constexpr Family kFamilies[] = {
    {"gemm_rs", "tma_slot", 4},          {"gemm_rs", "tma_slot", 1},         {"gemm_ar", "tma_slot", 4},
    {"gemm_ar", "tma_slot", 1},          {"ag_gemm", "k_slab", 4},           {"ag_gemm", "k_slab", 1},
    {"ag_gemm", "one_shot", 1, 64},      {"gemm_rs", "one_shot", 1, 64},     {"gemm_ar", "one_shot", 1, 64},
    {"ag_gemm", "one_shot", 1, 250},     {"gemm_rs", "one_shot", 1, 250},    {"gemm_ar", "one_shot", 1, 128},
    {"gemm_rs", "hetero_unfused_1d", 4}, {"ag_gemm", "uniform_fused_1d", 4}, {"gemm_rs", "library", 1}};

ExactProblem problem_of(const Family& f) {
  return {.op = f.op,
          .family = f.family,
          .degree = f.degree,
          .m = f.m,
          .n = f.n,
          .k = f.k,
          .look_every = f.m >= 1024 ? 41 : 1};
}

/// A stream of its own, and what was wrong on it.
struct SideStream {
  explicit SideStream(GpuRank& rank) : wrong(rank.device_array<uint64_t>(1)) {
    EXPECT_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  }
  ~SideStream() { (void)cudaStreamDestroy(stream); }
  SideStream(const SideStream&) = delete;
  SideStream& operator=(const SideStream&) = delete;
  cudaStream_t stream = nullptr;
  uint64_t* wrong;
};

/// An all-reduce of 128 MiB on a stream and a communicator of its own.
class AllReduce {
 public:
  static constexpr int64_t kCount = int64_t{32} << 20;

  explicit AllReduce(GpuRank& gpu)
      : gpu_(gpu), side_(gpu), data_(gpu.device_array<float>(kCount)), team_(gpu.team.sub(members(gpu.size))) {}
  void queue(int round) {
    EXPECT_CUDA(launch_addends(side_.stream, data_, kCount, gpu_.rank, static_cast<uint32_t>(round)));
    team_.net()->all_reduce(data_, data_, kCount, DType::fp32, StreamRef::cuda(side_.stream));
    EXPECT_CUDA(launch_look_at_sum(side_.stream, data_, kCount, gpu_.size, static_cast<uint32_t>(round), side_.wrong));
  }
  void expect_exact() {
    EXPECT_CUDA(cudaStreamSynchronize(side_.stream));
    gpu_.runtime.check();
    EXPECT_EQ(gpu_.read(side_.wrong), 0u) << "elements of the all-reduce, rank " << gpu_.rank;
  }

 private:
  static const std::vector<int>& members(int size) {
    static const std::vector<int> both = {0, 1};
    EXPECT_EQ(size, kRanks);
    return both;
  }
  GpuRank& gpu_;
  SideStream side_;
  float* data_;
  Team team_;
};

class Beside : public testing::TestWithParam<Family> {
 protected:
  void SetUp() override { OVERLACE_NEED_GPUS(kRanks); }
};

/// A product and an all-reduce, warm, in either order.
class Pair {
 public:
  Pair(GpuRank& gpu, const Family& family) : gpu_(gpu), sums_(gpu), site_(gpu.channel, problem_of(family)) {
    call(0, true);
    expect_exact(0);
  }
  /// Both, or a replay of the product and the all-reduce.
  void call(int turn, bool sums_first, Replay* replay = nullptr) {
    if (sums_first) sums_.queue(turn);
    replay != nullptr ? replay->launch() : site_.call();
    if (!sums_first) sums_.queue(turn);
  }
  void expect_exact(int turn) {
    EXPECT_EQ(site_.wrong(), 0u) << "turn " << turn << ", rank " << gpu_.rank << ", " << site_.problem().text();
    sums_.expect_exact();
    gpu_.team.barrier();
  }
  ExactSite& site() { return site_; }

 private:
  GpuRank& gpu_;
  AllReduce sums_;
  ExactSite site_;
};

void run_pairs(const std::function<void(GpuRank&, Pair&)>& body) {
  run_gpu_threads(
      kRanks,
      [&](GpuRank& gpu) {
        EXPECT_CUDA(load_exact_kernels());
        ASSERT_NE(gpu.team.net(), nullptr) << "this test is about NCCL";
        Pair pair(gpu, Beside::GetParam());
        body(gpu, pair);
      },
      default_options());
}

/// Rank 0 queues the all-reduce first, rank 1 the product first; then the other way round.
TEST_P(Beside, AnAllReduceOfAnotherStreamInTheOppositeOrder) {
  run_pairs([](GpuRank& gpu, Pair& pair) {
    for (int turn = 1, last = turns(); turn <= last && !HasFailure(); ++turn) {
      pair.call(turn, (gpu.rank == 0) == (turn % 2 == 1));
      pair.expect_exact(turn);
    }
  });
}

/// Without a meeting in between: whoever is ahead stays ahead.
TEST_P(Beside, ManyAllReducesOfAnotherStreamInTheOppositeOrder) {
  run_pairs([](GpuRank& gpu, Pair& pair) {
    for (int turn = 1; turn <= kTurns; ++turn) pair.call(turn, gpu.rank == 0);
    pair.expect_exact(kTurns);
  });
}

/// What a replay runs beside, nobody sees.
TEST_P(Beside, ReplaysInTheOppositeOrderOfAnAllReduce) {
  run_pairs([](GpuRank& gpu, Pair& pair) {
    Replay replay(gpu.stream, [&] { pair.site().call(); });
    for (int turn = 1, last = turns(); turn <= last && !HasFailure(); ++turn) {
      pair.call(turn, (gpu.rank == 0) == (turn % 2 == 1), &replay);
      pair.expect_exact(turn);
    }
  });
}

/// Two contexts over the same GPUs, each on a stream of its own: kernels of each leave room for those of the other.
TEST_P(Beside, AnotherContextOnAnotherStreamInTheOppositeOrder) {
  auto others = thread_bootstraps(kRanks);
  run_gpu_threads(
      kRanks,
      [&](GpuRank& gpu) {
        EXPECT_CUDA(load_exact_kernels());
        SideStream side(gpu);
        Runtime other = Runtime::open(*others[static_cast<size_t>(gpu.rank)], runtime_options(default_options()));
        ExactSite here(gpu.channel, problem_of(GetParam()));
        ExactSite there(other.world().channel(StreamRef::cuda(side.stream)), problem_of(GetParam()));
        here.call();
        EXPECT_EQ(here.wrong(), 0u);
        there.call();
        EXPECT_EQ(there.wrong(), 0u);
        for (int turn = 1, last = turns(); turn <= last; ++turn) {
          gpu.team.barrier();
          const bool here_first = (gpu.rank == 0) == (turn % 2 == 1);
          (here_first ? here : there).call();
          (here_first ? there : here).call();
          const uint64_t wrong_here = here.wrong(), wrong_there = there.wrong();
          gpu.runtime.check();
          other.check();
          ASSERT_EQ(wrong_here + wrong_there, 0u) << "turn " << turn << ", " << here.problem().text();
        }
        other.close();
      },
      default_options());
}

INSTANTIATE_TEST_SUITE_P(Schedules, Beside, testing::ValuesIn(kFamilies), [](const auto& one) {
  return base::format("{}_{}_q{}_M{}", one.param.op, one.param.family, one.param.degree, one.param.m);
});

}  // namespace
}  // namespace overlace::test
