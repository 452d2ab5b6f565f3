// Family tracked of gemm_rs on GPUs: copy engines that wait for counters of a running kernel. Ranks are threads, one
// GPU each; with one GPU they share it.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "overlace/ops/common.h"
#include "tests/gpu/support/ops_site.h"

namespace overlace {
namespace {

class GpuTracked : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    if (runtime::cuda_device_count(&why) == 0) GTEST_SKIP() << why;
  }
};

/// Whole tiles and ragged rows, empty shards, chunks of one and of several rows of tiles, wide and narrow results.
std::vector<Problem> problems(int ranks) {
  const std::vector<int64_t> uneven =
      ranks == 2 ? std::vector<int64_t>{0, 1300, 1811} : std::vector<int64_t>{0, 300, 300, 1412, 1811};
  return {{.op = "gemm_rs", .m = 2048, .n = 512, .k = 320},
          {.op = "gemm_rs", .m = 1031, .n = 264, .k = 72, .bias = true},
          {.op = "gemm_rs", .m = 1811, .n = 392, .k = 136, .row_offsets = uneven},
          {.op = "gemm_rs", .m = 1, .n = 64, .k = 64},
          {.op = "gemm_rs", .m = 2048, .n = 264, .k = 136, .dtype = DType::fp16},
          {.op = "gemm_rs", .m = 1100, .n = 392, .k = 72, .dtype = DType::fp16, .layout = spec::BLayout::kn},
          {.op = "gemm_rs", .m = 4096, .n = 4096, .k = 64}};
}

std::string text_of(const Problem& p, int degree, int64_t queues, int ranks) {
  return base::format("M {} N {} K {} {} q {}, {} copy lanes, {} ranks", p.m, p.n, p.k, dtype_name(p.dtype), degree,
                      queues, ranks);
}

TEST_F(GpuTracked, GivesTheExactResultAndTheSameBitsInCallsBehindEachOther) {
  for (const int n : team_sizes()) {
    if (n == 1) continue;
    const std::string failure = on_ranks(n, [&](Runtime& runtime, cudaStream_t stream) {
      Channel& channel = runtime.world().channel(StreamRef::cuda(stream));
      for (const Problem& problem : problems(n)) {
        Site site(problem, channel);
        for (const int degree : {1, 2, 4}) {
          const int64_t queues = degree == 4 ? 2 : 1;
          const spec::Schedule schedule = spec::make_schedule(site.op(), "tracked", degree, {{"ce_queues", queues}});
          const std::string where = text_of(problem, degree, queues, n);
          require(ops::supports(channel, site.op(), schedule).reason, where);
          site.out().poison();
          site.run(schedule);
          settle(runtime);
          require(site.mismatch(), where);
          const std::vector<unsigned char> bits = site.out().bytes();
          for (int call = 0; call < 40; ++call) {
            if (call % 4 == 0) cuda_ok(cudaMemsetAsync(site.out().device().data, 0xff, bits.size(), stream));
            site.run(schedule);
          }
          settle(runtime);
          site.out().download();
          if (site.out().bytes() != bits) throw std::runtime_error(where + ": other bits in a later call");
          runtime.world().barrier();
          runtime.check_quiescent();
          runtime.world().barrier();
        }
      }
    });
    EXPECT_EQ(failure, "");
  }
}

/// Operands that change between calls: what an earlier call left in the partial sums shows.
TEST_F(GpuTracked, SendsWhatThisCallComputed) {
  const std::string failure = on_ranks(team_sizes().back(), [&](Runtime& runtime, cudaStream_t stream) {
    Channel& channel = runtime.world().channel(StreamRef::cuda(stream));
    Site first({.op = "gemm_rs", .m = 2048, .n = 512, .k = 320}, channel);
    Site second({.op = "gemm_rs", .m = 2048, .n = 512, .k = 320, .bias = true}, channel);
    const spec::Schedule one = spec::make_schedule(first.op(), "tracked", 2);
    const spec::Schedule two = spec::make_schedule(second.op(), "tracked", 4);
    for (int call = 0; call < 10; ++call) {
      first.run(one);
      second.run(two);
    }
    settle(runtime);
    require(first.mismatch(), "q 2");
    require(second.mismatch(), "q 4");
    runtime.world().barrier();
  });
  EXPECT_EQ(failure, "");
}

TEST_F(GpuTracked, IsCapturedAndReplayedAHundredTimes) {
  const std::string failure = on_ranks(team_sizes().back(), [&](Runtime& runtime, cudaStream_t stream) {
    Channel& channel = runtime.world().channel(StreamRef::cuda(stream));
    for (const DType dtype : {DType::bf16, DType::fp16}) {
      Site site({.op = "gemm_rs", .m = 2048 + 31, .n = 512, .k = 320, .dtype = dtype}, channel);
      const spec::Schedule schedule = spec::make_schedule(site.op(), "tracked", 2);
      site.out().poison();
      site.run(schedule);
      settle(runtime);
      require(site.mismatch(), "eager");
      const std::vector<unsigned char> eager = site.out().bytes();
      cuda_ok(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
      site.run(schedule);
      site.run(schedule);
      cudaGraph_t graph = nullptr;
      cudaGraphExec_t exec = nullptr;
      cuda_ok(cudaStreamEndCapture(stream, &graph));
      cuda_ok(cudaGraphInstantiate(&exec, graph, 0));
      runtime.world().barrier();  // it allocates, which waits for the kernels of a rank that shares the GPU
      for (int replay = 0; replay < 100; ++replay) {
        if (replay % 10 == 0) cuda_ok(cudaMemsetAsync(site.out().device().data, 0xff, eager.size(), stream));
        cuda_ok(cudaGraphLaunch(exec, stream));
      }
      settle(runtime);
      site.out().download();
      if (site.out().bytes() != eager) throw std::runtime_error("a replay gave other bits");
      site.run(schedule);
      settle(runtime);
      site.out().download();
      if (site.out().bytes() != eager) throw std::runtime_error("eager after replays gave other bits");
      runtime.world().barrier();
      runtime.check_quiescent();
      (void)cudaGraphExecDestroy(exec);
      (void)cudaGraphDestroy(graph);
    }
  });
  EXPECT_EQ(failure, "");
}

/// One rank does not make the second call: the others say at their deadline for whom they waited, and nothing hangs.
TEST_F(GpuTracked, AMissingPeerEndsAtTheDeadline) {
  std::atomic<bool> is_told = false;
  std::string said;
  (void)on_ranks(2, [&](Runtime& runtime, cudaStream_t stream) {
    Channel& channel = runtime.world().channel(StreamRef::cuda(stream));
    Site site({.op = "gemm_rs", .m = 2048, .n = 512, .k = 320}, channel);
    const spec::Schedule schedule = spec::make_schedule(site.op(), "tracked", 2);
    site.run(schedule);
    settle(runtime);
    runtime.world().barrier();
    if (runtime.world().rank() == 1) {
      while (!is_told) std::this_thread::sleep_for(std::chrono::milliseconds(10));
      return;
    }
    try {
      site.run(schedule);
      runtime.synchronize();
      runtime.check();
      said = "nothing";
    } catch (const std::exception& e) {
      said = e.what();
    }
    is_told = true;
  });
  EXPECT_NE(said.find("rank 0 waited for rank 1"), std::string::npos) << said;
}

}  // namespace
}  // namespace overlace
