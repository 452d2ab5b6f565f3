// Adopted memory and striped ranges where ranks are processes. This process stays without a CUDA context, so that it
// can fork.
#include <string>

#include "tests/gpu/support/memory_exchanges.h"

namespace overlace::test {
namespace {

TEST(GpuMemoryProcessesTest, PutIntoAdoptedIpcMappings) {
  OVERLACE_NEED_GPUS(2);
  run_gpu_processes(gpu_count() >= 4 ? 4 : 2, {}, [](GpuRank& gpu) { put_everywhere(gpu, true); });
}

TEST(GpuMemoryProcessesTest, StoreIntoStripesAndOwnersFind) {
  OVERLACE_NEED_GPUS(2);
  for (const int n : {1, 2, 4})
    if (gpu_count() >= n) run_gpu_processes(n, {"OVERLACE_HEAP=vmm"}, store_and_find);
}

TEST(GpuMemoryProcessesTest, AnIpcHeapRefusesStripesWithTheReason) {
  OVERLACE_NEED_GPUS(1);
  const Ended ended = fork_ranks(1, {"OVERLACE_HEAP=ipc"}, [&](Bootstrap&) {
    run_gpu_threads(2, [](GpuRank& gpu) {
      EXPECT_EQ(gpu.runtime.heap().stripe_granule(), 0u);
      std::string text;
      try {
        (void)gpu.runtime.heap().stripe(shards(gpu.rank, gpu.size), "c");
      } catch (const Unsupported& error) {
        EXPECT_EQ(error.code(), Errc::not_supported);
        text = error.what();
      }
      EXPECT_NE(text.find("heap.stripe \"c\": a heap of kind ipc cannot map parts"), std::string::npos) << text;
    });
  });
  EXPECT_EQ(ended.status[0], 0);
}

}  // namespace
}  // namespace overlace::test
