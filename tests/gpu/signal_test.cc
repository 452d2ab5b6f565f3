// Signals, words and barriers of device code; counts that pass 2^63 and 2^64; many writers; long runs.
#include <limits>

#include "src/runtime/backend/cuda_peer/nodes.h"
#include "tests/gpu/support/gpu_ranks.h"
#include "tests/gpu/support/kernels.h"

namespace overlace::test {
namespace {

namespace cp = runtime::cuda_peer;

class GpuSignalTest : public testing::TestWithParam<int> {
 protected:
  void SetUp() override { OVERLACE_NEED_GPUS(1); }
};

void run_rounds(GpuRank& gpu, Round how, uint32_t rounds) {
  const SignalIds ids = gpu.channel.ids(1, Domain::device, "rounds");
  auto* code = gpu.device_array<int32_t>(1);
  const int32_t unset = -1;
  gpu.store(code, &unset, sizeof unset);
  gpu.team.barrier();
  launch_rounds(gpu.stream, gpu.pod(), how, ids.first, rounds, code);
  EXPECT_EQ(gpu.read(code), 0);
  gpu.wait();
  gpu.team.barrier();
  // What was added is what was consumed, on every slot.
  for (int from = 0; from < gpu.size; ++from) {
    const uint64_t slot = gpu.read(cp::slot_address(gpu.pod().team, gpu.rank, ids.first, from));
    EXPECT_EQ(slot, from == gpu.rank ? 0u : rounds) << "from rank " << from;
  }
}

TEST_P(GpuSignalTest, AddsByEachRank) {
  run_gpu_threads(GetParam(), [](GpuRank& gpu) { run_rounds(gpu, Round::signal_add, 2000); });
}
TEST_P(GpuSignalTest, AddsToAllWithOneFence) {
  run_gpu_threads(GetParam(), [](GpuRank& gpu) { run_rounds(gpu, Round::signal_add_all, 2000); });
}
TEST_P(GpuSignalTest, PostsOfTheOnlyWriter) {
  run_gpu_threads(GetParam(), [](GpuRank& gpu) { run_rounds(gpu, Round::post, 2000); });
}
TEST_P(GpuSignalTest, BlockBarriers) {
  run_gpu_threads(GetParam(), [](GpuRank& gpu) { run_rounds(gpu, Round::barrier_block, 2000); });
}

TEST_P(GpuSignalTest, AMillionEpochs) {
  GpuOptions options;
  options.timeout_ms = 60000;
  run_gpu_threads(
      GetParam(), [](GpuRank& gpu) { run_rounds(gpu, Round::signal_add, 1000000); }, options);
}

TEST_P(GpuSignalTest, ManyBlocksOfManyRanksOnOneSlotEach) {
  run_gpu_threads(GetParam(), [](GpuRank& gpu) {
    constexpr uint32_t kBlocks = 24, kAdds = 500;
    const SignalIds ids = gpu.channel.ids(1, Domain::device, "many writers");
    auto* code = gpu.device_array<int32_t>(1);
    gpu.team.barrier();
    for (int to = 0; to < gpu.size; ++to) launch_many_adds(gpu.stream, gpu.pod(), to, ids.first, kBlocks, kAdds);
    for (int from = 0; from < gpu.size; ++from) {
      launch_wait(gpu.stream, gpu.pod(), from, ids.first, kBlocks * kAdds, code);
      EXPECT_EQ(gpu.read(code), 0);
    }
    gpu.team.barrier();
    for (int from = 0; from < gpu.size; ++from)
      EXPECT_EQ(gpu.read(cp::slot_address(gpu.pod().team, gpu.rank, ids.first, from)), uint64_t{kBlocks} * kAdds);
  });
}

TEST_P(GpuSignalTest, CountsPassTheSignBitAndTheEnd) {
  const uint64_t starts[] = {(uint64_t{1} << 63) - 3, std::numeric_limits<uint64_t>::max() - 2};
  for (const uint64_t start : starts) {
    run_gpu_threads(GetParam(), [start](GpuRank& gpu) {
      const SignalIds ids = gpu.channel.ids(1, Domain::device, "wrap");
      const TeamPod& pod = gpu.pod().team;
      auto* code = gpu.device_array<int32_t>(1);
      for (int from = 0; from < gpu.size; ++from) {
        gpu.store(cp::slot_address(pod, gpu.rank, ids.first, from), &start, sizeof start);
        gpu.store(pod.ticket + uint64_t{ids.first} * pod.sig_stride + static_cast<uint64_t>(from), &start,
                  sizeof start);
      }
      gpu.team.barrier();
      // Eight steps across the edge; a wait that compared without rolling over would hold too early or never.
      launch_rounds(gpu.stream, gpu.pod(), Round::signal_add, ids.first, 8, code);
      EXPECT_EQ(gpu.read(code), 0);
      gpu.team.barrier();
      for (int from = 0; from < gpu.size; ++from)
        EXPECT_EQ(gpu.read(cp::slot_address(pod, gpu.rank, ids.first, from)), start + (from == gpu.rank ? 0 : 8))
            << "from " << from;
    });
  }
}

TEST_P(GpuSignalTest, BlocksOfOneDeviceMeet) {
  run_gpu_threads(GetParam(), [](GpuRank& gpu) {
    constexpr uint32_t kBlocks = 16, kRounds = 200;
    auto* counter = gpu.device_array<uint32_t>(1);
    auto* cells = gpu.device_array<uint32_t>(kBlocks);
    auto* wrong = gpu.device_array<uint32_t>(1);
    auto* code = gpu.device_array<int32_t>(1);
    gpu.team.barrier();
    launch_grid_rounds(gpu.stream, gpu.pod(), kBlocks, kRounds, counter, cells, wrong, code);
    EXPECT_EQ(gpu.read(code), 0);
    EXPECT_EQ(gpu.read(wrong), 0u);
    EXPECT_EQ(gpu.read(counter), 2 * kBlocks * kRounds);
  });
}

TEST_P(GpuSignalTest, NodesFollowTheEpochCell) {
  run_gpu_threads(GetParam(), [](GpuRank& gpu) {
    // Three adds a call; the wait names two of them, the next call's `previous` wait all three.
    const SignalIds ids = gpu.channel.ids(1, Domain::device, "epochs");
    const TeamPod& pod = gpu.pod().team;
    const int to = (gpu.rank + 1) % gpu.size, from = (gpu.rank + gpu.size - 1) % gpu.size;
    auto* epoch = gpu.device_array<uint64_t>(1);
    const uint64_t one = 1;
    gpu.store(epoch, &one, sizeof one);
    const cp::TicketAdd add{pod.ticket + uint64_t{ids.first} * pod.sig_stride + static_cast<uint64_t>(from), 3};
    auto* table = gpu.device_array<cp::TicketAdd>(1);
    gpu.store(table, &add, sizeof add);
    const uint64_t* slot = cp::slot_address(pod, gpu.rank, ids.first, from);
    const auto wait_list = [&](uint64_t at_least, uint32_t previous) {
      cp::WaitList waits;
      waits.team = pod;
      waits.items[0] = {slot, epoch, 3, at_least, previous, static_cast<uint32_t>(from), ids.first};
      waits.count = 1;
      return waits;
    };
    const auto add_to_next = [&](uint64_t count) {
      cp::SignalList signals;
      signals.items[0].slot = cp::slot_address(pod, to, ids.first, gpu.rank);
      signals.items[0].value = count;
      signals.count = 1;
      EXPECT_TRUE(cp::launch_signal(gpu.stream, signals).ok());
    };
    gpu.team.barrier();
    for (int call = 0; call < 50; ++call) {
      EXPECT_TRUE(cp::launch_wait(gpu.stream, wait_list(0, 1)).ok());
      add_to_next(2);
      EXPECT_TRUE(cp::launch_wait(gpu.stream, wait_list(2, 0)).ok());
      add_to_next(1);
      EXPECT_TRUE(cp::launch_wait(gpu.stream, wait_list(3, 0)).ok());
      EXPECT_TRUE(cp::launch_epoch_end(gpu.stream, {epoch, table, 1}).ok());
    }
    gpu.wait();
    EXPECT_EQ(gpu.read(epoch), 51u);
    gpu.team.barrier();
    EXPECT_EQ(gpu.read(slot), 150u);
    cp::WaitList too_many;
    too_many.count = cp::kMaxNodeItems + 1;
    EXPECT_EQ(cp::launch_wait(gpu.stream, too_many).code(), Errc::invalid_argument);
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, GpuSignalTest, testing::Values(1, 2, 4));

}  // namespace
}  // namespace overlace::test
