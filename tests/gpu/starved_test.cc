// Fused kernels of which a few CTAs alone are resident, as beside a collective of another stream that waits for what
// comes behind them: those must do all the work. Two ranks share a GPU; what holds the other SMs leaves when both calls
// have ended.
#include <chrono>
#include <memory>
#include <string>
#include <thread>

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
};
constexpr Family kFamilies[] = {{"gemm_rs", "tma_slot", 4}, {"gemm_rs", "tma_slot", 1}, {"gemm_ar", "tma_slot", 4},
                                {"gemm_ar", "tma_slot", 1}, {"ag_gemm", "k_slab", 4},   {"ag_gemm", "k_slab", 1}};

void settle_device() { std::this_thread::sleep_for(std::chrono::milliseconds(20)); }

/// Three holders that leave one after the other: what the first and the second free is for one rank each.
class Holders {
 public:
  explicit Holders(int device) {
    int sms = 0;
    EXPECT_CUDA(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device));
    EXPECT_CUDA(cudaHostAlloc(reinterpret_cast<void**>(&words_), 3 * sizeof(uint32_t), cudaHostAllocMapped));
    const int pairs[] = {kPairsFree, kPairsFree, sms / 2 - 2 * kPairsFree};
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
  static constexpr int kPairsFree = 2;
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
              holders = std::make_unique<Holders>(gpu.runtime.device());
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

INSTANTIATE_TEST_SUITE_P(Schedules, Starved, testing::ValuesIn(kFamilies), [](const auto& one) {
  return base::format("{}_{}_q{}", one.param.op, one.param.family, one.param.degree);
});

}  // namespace
}  // namespace overlace::test
