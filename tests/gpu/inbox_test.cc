// Inboxes and local counters in device code. Reuse of a buffer without credit must show damage.
#include <atomic>
#include <functional>
#include <string>

#include "src/runtime/backend/cuda_peer/stream_ops.h"
#include "tests/gpu/support/gpu_ranks.h"
#include "tests/gpu/support/objects.h"

namespace overlace::test {
namespace {

namespace cp = runtime::cuda_peer;

constexpr uint32_t kPart = 16 * 1024;

InboxArgs inbox_args(GpuRank& gpu, const Inbox& inbox, InboxPattern pattern, uint32_t rounds) {
  EXPECT_CUDA(load_object_kernels());
  InboxArgs args;
  args.channel = gpu.pod();
  args.inbox = inbox.pod();
  args.pattern = pattern;
  args.rounds = rounds;
  args.part_bytes = kPart;
  args.wrong = gpu.device_array<uint32_t>(1);
  args.code = gpu.device_array<int32_t>(1);
  gpu.team.barrier();
  return args;
}

void exchange_epochs(GpuRank& gpu) {
  for (const int k : {1, 2, 3}) {
    const Inbox inbox = gpu.channel.inbox(static_cast<size_t>(kPart) * static_cast<size_t>(gpu.size), k);
    const InboxArgs args = inbox_args(gpu, inbox, InboxPattern::all_to_all, 500);
    for (int launch = 0; launch < 4; ++launch) launch_inbox(gpu.stream, args);
    EXPECT_EQ(gpu.read(args.code), 0);
    EXPECT_EQ(gpu.read(args.wrong), 0u);
    EXPECT_EQ(gpu.read(args.inbox.cells), 2000u);
    gpu.team.barrier();
    gpu.runtime.check_quiescent();
    gpu.channel.release(inbox);  // the next one gets the same ids, whose slots are not at zero
  }
}

/// A captured epoch goes on with its own numbers at each replay.
void replay_epochs(GpuRank& gpu) {
  const Inbox inbox = gpu.channel.inbox(static_cast<size_t>(kPart) * static_cast<size_t>(gpu.size));
  const InboxArgs args = inbox_args(gpu, inbox, InboxPattern::all_to_all, 3);
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  EXPECT_CUDA(cudaStreamBeginCapture(gpu.stream, cudaStreamCaptureModeThreadLocal));
  launch_inbox(gpu.stream, args);
  Errc caught = Errc::ok;
  try {
    (void)gpu.channel.counters(1, "late");
  } catch (const Error& error) {
    caught = error.code();
  }
  EXPECT_EQ(caught, Errc::capture);
  EXPECT_CUDA(cudaStreamEndCapture(gpu.stream, &graph));
  EXPECT_CUDA(cudaGraphInstantiate(&executable, graph, 0));
  for (int replay = 0; replay < 100; ++replay) EXPECT_CUDA(cudaGraphLaunch(executable, gpu.stream));
  launch_inbox(gpu.stream, args);
  EXPECT_EQ(gpu.read(args.code), 0);
  EXPECT_EQ(gpu.read(args.wrong), 0u);
  EXPECT_EQ(gpu.read(args.inbox.cells), 303u);
  EXPECT_CUDA(cudaGraphExecDestroy(executable));
  EXPECT_CUDA(cudaGraphDestroy(graph));
}

class GpuInboxTest : public testing::TestWithParam<int> {
 protected:
  void SetUp() override { OVERLACE_NEED_GPUS(1); }
};

TEST_P(GpuInboxTest, EveryEpochArrivesWhole) { run_gpu_threads(GetParam(), exchange_epochs); }
TEST_P(GpuInboxTest, ReplaysGoOn) { run_gpu_threads(GetParam(), replay_epochs); }

TEST_P(GpuInboxTest, StaleDataAreSeenOnlyWithoutCredit) {
  if (GetParam() < 2) GTEST_SKIP() << "one rank sends to nobody";
  for (const InboxPattern pattern : {InboxPattern::one_way, InboxPattern::one_way_without_credit}) {
    std::atomic<uint64_t> wrong{0};
    run_gpu_threads(GetParam(), [&](GpuRank& gpu) {
      const Inbox inbox = gpu.channel.inbox(static_cast<size_t>(kPart) * static_cast<size_t>(gpu.size));
      const InboxArgs args = inbox_args(gpu, inbox, pattern, 2000);
      launch_inbox(gpu.stream, args);
      EXPECT_EQ(gpu.read(args.code), 0);
      wrong += gpu.read(args.wrong);
      gpu.team.barrier();
    });
    if (pattern == InboxPattern::one_way) {
      EXPECT_EQ(wrong.load(), 0u);
    } else {
      EXPECT_GT(wrong.load(), 0u) << "this test could not find a missing credit";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, GpuInboxTest, testing::Values(1, 2, 4));

TEST(GpuInboxProcessesTest, EveryEpochArrivesWhole) {
  OVERLACE_NEED_GPUS(2);
  for (const char* heap : {"OVERLACE_HEAP=vmm", "OVERLACE_HEAP=ipc"})
    run_gpu_processes(gpu_count() >= 4 ? 4 : 2, {heap}, exchange_epochs);
}

TEST(GpuCountersTest, BlocksOfOneGpuMeet) {
  OVERLACE_NEED_GPUS(1);
  run_gpu_threads(1, [](GpuRank& gpu) {
    constexpr uint32_t kBlocks = 100;
    EXPECT_CUDA(load_object_kernels());
    const Counters counters = gpu.channel.counters(2, "tiles");
    auto* words = gpu.device_array<uint32_t>(kBlocks);
    auto* sum = gpu.device_array<uint64_t>(2);
    auto* code = gpu.device_array<int32_t>(1);
    for (int call = 0; call < 50; ++call) {
      EXPECT_CUDA(cudaMemsetAsync(words, 0, kBlocks * sizeof(uint32_t), gpu.stream));
      launch_last_arriver(gpu.stream, counters.pod(), kBlocks, words, sum);
      EXPECT_EQ(gpu.read(sum), 1000u * kBlocks + kBlocks * (kBlocks - 1) / 2);
      launch_counted_tiles(gpu.stream, gpu.pod().team, counters.pod(), kBlocks, words, sum + 1, code);
      EXPECT_EQ(gpu.read(code), 0);
      EXPECT_EQ(gpu.read(sum + 1), 2000u * (kBlocks - 1) + kBlocks * (kBlocks - 1) / 2);
      gpu.channel.reset(counters);
    }
    gpu.channel.release(counters);
  });
}

/// The tile trigger: a kernel fills and counts, a stream that waits for the counter copies.
TEST(GpuCountersTest, AStreamWaitsForTiles) {
  OVERLACE_NEED_GPUS(1);
  run_gpu_threads(1, [](GpuRank& gpu) {
    const cp::StreamCaps& caps = gpu.state().stream_caps();
    if (!caps.wait_value) return;
    constexpr uint32_t kBytes = 1 << 20;
    EXPECT_CUDA(load_object_kernels());
    const Counters counters = gpu.channel.counters(3, "tiles");
    auto* word = reinterpret_cast<uint64_t*>(counters.pod().words + 2 * kCounterPitch);
    auto* data = gpu.device_array<uint8_t>(kBytes);
    auto* copy = gpu.device_array<uint8_t>(kBytes);
    auto* wrong = gpu.device_array<uint64_t>(1);
    cudaStream_t second = nullptr;
    EXPECT_CUDA(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
    for (uint32_t call = 1; call <= 20; ++call) {
      EXPECT_TRUE(cp::stream_wait(word, 1, false, caps, second).ok());
      EXPECT_TRUE(gpu.state().guard_stream_wait(second, {word, 1, 0, 0, 0}).ok());
      EXPECT_TRUE(cp::stream_put(copy, data, kBytes, second).ok());
      launch_compare(second, copy, kBytes, call, wrong);
      launch_fill_and_count(gpu.stream, data, kBytes, call, counters.pod(), 2);
      EXPECT_CUDA(cudaStreamSynchronize(second));
      gpu.channel.reset(counters);
      EXPECT_CUDA(cudaStreamSynchronize(gpu.stream));  // else the next wait may see the count of this call
    }
    EXPECT_EQ(gpu.read(wrong), 0u);
    EXPECT_CUDA(cudaStreamDestroy(second));
  });
}

TEST(GpuCountersTest, AMissingTileIsATimeoutThatNamesIt) {
  OVERLACE_NEED_GPUS(1);
  GpuOptions options;
  options.timeout_ms = 2000;
  options.checks_end = false;
  run_gpu_threads(1, [](GpuRank&) {});  // the context exists from here on: opening fits the short deadline
  run_gpu_threads(
      1,
      [](GpuRank& gpu) {
        EXPECT_CUDA(load_object_kernels());
        const Counters counters = gpu.channel.counters(5, "mlp.tiles");
        auto* code = gpu.device_array<int32_t>(1);
        launch_counter_wait(gpu.stream, gpu.pod().team, counters.pod(), 4, 9, code);
        EXPECT_EQ(gpu.read(code), static_cast<int32_t>(Errc::timeout));
        std::string text;
        try {
          gpu.runtime.check();
        } catch (const Timeout& error) {
          text = error.what();
        }
        EXPECT_NE(text.find("counter 4 (mlp.tiles, block 0): expected >= 9, seen 0"), std::string::npos) << text;
      },
      options);
}

}  // namespace
}  // namespace overlace::test
