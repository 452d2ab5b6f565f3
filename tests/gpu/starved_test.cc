// Fused kernels that do not get the SMs they ask for. A few CTAs alone are resident, as beside a collective of another
// stream that waits for what comes behind them: those must do all the work; what holds the other SMs leaves when both
// calls have ended. Or a kernel of another context takes them on one rank and not on the other. Two ranks share a GPU.
#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

#include "overlace/runtime.h"
#include "src/base/format.h"
#include "tests/gpu/support/exact.h"
#include "tests/gpu/support/gpu_ranks.h"
#include "tests/gpu/support/kernels.h"

namespace overlace::test {
namespace {

constexpr int kRanks = 2, kTurns = 4;
constexpr int64_t kMostMs = 15000;

struct Family {
  const char* op;
  const char* family;
  int degree;
  int64_t m = 2048, n = 2048, k = 1024;
  /// Its CTAs keep their SMs to the end. Those of one_shot go when their tiles are done, and here the other rank takes
  /// the SM; so that rank gets all the SMs that it wants.
  bool keeps_sms() const { return std::string_view(family) != "one_shot"; }
};
constexpr Family kFamilies[] = {{"gemm_rs", "tma_slot", 4},
                                {"gemm_rs", "tma_slot", 1},
                                {"gemm_ar", "tma_slot", 4},
                                {"gemm_ar", "tma_slot", 1},
                                {"ag_gemm", "k_slab", 4},
                                {"ag_gemm", "k_slab", 1},
                                {"gemm_rs", "one_shot", 1, 64, 8192},
                                {"gemm_ar", "one_shot", 1, 64, 8192},
                                {"gemm_ar", "one_shot", 1, 3, 8192},
                                {"gemm_rs", "one_shot", 1, 100, 4096},
                                {"gemm_ar", "one_shot", 1, 250, 8192},
                                {"ag_gemm", "one_shot", 1, 64, 8192},
                                {"ag_gemm", "one_shot", 1, 2, 4096},
                                {"ag_gemm", "one_shot", 1, 250, 8192}};

void settle_device() { std::this_thread::sleep_for(std::chrono::milliseconds(20)); }

/// Three holders that leave one after the other: what the first and the second free is for one rank each.
class Holders {
 public:
  /// Pairs of SMs that each frees.
  Holders(int device, int first, int second) {
    int sms = 0;
    EXPECT_CUDA(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device));
    EXPECT_CUDA(cudaHostAlloc(reinterpret_cast<void**>(&words_), 3 * sizeof(uint32_t), cudaHostAllocMapped));
    const int pairs[] = {first, second, sms / 2 - first - second};
    for (int i = 0; i < 3; ++i) {
      EXPECT_CUDA(cudaStreamCreateWithFlags(&streams_[i], cudaStreamNonBlocking));
      words_[i] = 0;
      EXPECT_CUDA(launch_hold(streams_[i], pairs[i], words_ + i, 1, kMostMs));
    }
    settle_device();
  }
  ~Holders() {
    for (int i = 0; i < 3; ++i) {
      release(i);
      (void)cudaStreamSynchronize(streams_[i]);
      (void)cudaStreamDestroy(streams_[i]);
    }
    (void)cudaFreeHost(words_);
  }
  Holders(const Holders&) = delete;
  Holders& operator=(const Holders&) = delete;
  void release(int i) { *static_cast<volatile uint32_t*>(words_ + i) = 1; }
  /// Whether the last one holds its SMs still.
  bool holds() const { return cudaStreamQuery(streams_[2]) == cudaErrorNotReady; }

 private:
  uint32_t* words_ = nullptr;
  cudaStream_t streams_[3] = {};
};

class Starved : public testing::TestWithParam<Family> {
 protected:
  void SetUp() override {
    OVERLACE_NEED_GPUS(1);
    if (gpu_count() > 1) GTEST_SKIP() << "ranks have a GPU each: gpu_beside";
  }
};

TEST_P(Starved, AFewResidentCtasDoAllTheWork) {
  GpuOptions options = default_options();
  options.timeout_ms = 8000;
  run_gpu_threads(
      kRanks,
      [](GpuRank& gpu) {
        EXPECT_CUDA(load_exact_kernels());
        const Family& f = GetParam();
        // What is free goes to rank 1's waiting CTAs, but for those of rank 0, which come first.
        int least = 0, most = 0;
        EXPECT_CUDA(cudaDeviceGetStreamPriorityRange(&least, &most));
        cudaStream_t stream = nullptr;
        EXPECT_CUDA(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, gpu.rank == 0 ? most : least));
        {
          ExactSite site(gpu.team.channel(StreamRef::cuda(stream)),
                         {.op = f.op, .family = f.family, .degree = f.degree, .m = f.m, .n = f.n, .k = f.k});
          const auto settle = [&] {
            EXPECT_CUDA(cudaStreamSynchronize(stream));
            gpu.runtime.check();
            gpu.team.barrier();
          };
          site.call();
          settle();
          for (int turn = 0; turn < kTurns; ++turn) {
            std::unique_ptr<Holders> holders;
            if (gpu.rank == 0) {
              constexpr int kFewPairs = 2;
              const int all = gpu.runtime.state().backend->sm_room() / 2;
              holders = std::make_unique<Holders>(gpu.runtime.device(), kFewPairs, f.keeps_sms() ? kFewPairs : all);
              holders->release(0);
              settle_device();
            }
            gpu.team.barrier();
            if (gpu.rank == 1) {
              site.call();
              settle_device();
            }
            gpu.team.barrier();
            if (gpu.rank == 0) {
              site.call();
              settle_device();  // its kernel waits for SMs, too
              holders->release(1);
            }
            settle();
            if (gpu.rank == 0) {
              EXPECT_TRUE(holders->holds()) << "the call ended when it had all SMs";
            }
            ASSERT_EQ(site.wrong(), 0u) << "turn " << turn << ", " << site.problem().text();
            gpu.team.barrier();
          }
        }
        EXPECT_CUDA(cudaStreamDestroy(stream));
      },
      options);
}

/// Two contexts, each on a stream of its own: rank 0 starts the call of the one first, rank 1 that of the other. If
/// each could fill the SMs of its rank, neither call would find its peer.
TEST_P(Starved, TwoContextsInTheOppositeOrder) {
  auto others = thread_bootstraps(kRanks);
  GpuOptions options = default_options();
  options.timeout_ms = 8000;
  run_gpu_threads(
      kRanks,
      [&](GpuRank& gpu) {
        EXPECT_CUDA(load_exact_kernels());
        const Family& f = GetParam();
        const ExactProblem problem{.op = f.op, .family = f.family, .degree = f.degree, .m = f.m, .n = f.n, .k = f.k};
        cudaStream_t side = nullptr;
        EXPECT_CUDA(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
        Runtime other = Runtime::open(*others[static_cast<size_t>(gpu.rank)], runtime_options(options));
        {
          ExactSite here(gpu.channel, problem), there(other.world().channel(StreamRef::cuda(side)), problem);
          const auto settle = [&] {
            EXPECT_CUDA(cudaStreamSynchronize(gpu.stream));
            EXPECT_CUDA(cudaStreamSynchronize(side));
            gpu.runtime.check();
            other.check();
            gpu.team.barrier();
          };
          here.call();
          settle();
          there.call();
          settle();
          for (int turn = 0; turn < kTurns; ++turn) {
            const bool here_first = (gpu.rank == 0) == (turn % 2 == 0);
            (here_first ? here : there).call();
            settle_device();
            gpu.team.barrier();
            (here_first ? there : here).call();
            settle();
            ASSERT_EQ(here.wrong() + there.wrong(), 0u) << "turn " << turn << ", " << here.problem().text();
            gpu.team.barrier();
          }
        }
        other.close();
        EXPECT_CUDA(cudaStreamDestroy(side));
      },
      options);
}

INSTANTIATE_TEST_SUITE_P(Schedules, Starved, testing::ValuesIn(kFamilies), [](const auto& one) {
  return base::format("{}_{}_q{}_m{}", one.param.op, one.param.family, one.param.degree, one.param.m);
});

}  // namespace
}  // namespace overlace::test
