// Memory that somebody else made symmetric: plain allocations with peer access. cudaIpc mappings between processes are
// in memory_processes_test.cc.
#include <string>
#include <vector>

#include "tests/gpu/support/memory_exchanges.h"

namespace overlace::test {
namespace {

TEST(GpuAdoptTest, ThreadsPutIntoPlainAllocations) {
  OVERLACE_NEED_GPUS(1);
  for (const int n : {1, 2, 4}) run_gpu_threads(n, [](GpuRank& gpu) { put_everywhere(gpu, false); });
}

TEST(GpuAdoptTest, MoreRanksThanThePodHolds) {
  OVERLACE_NEED_GPUS(2);
  run_gpu_threads(10, [](GpuRank& gpu) { put_everywhere(gpu, false); });
}

TEST(GpuAdoptTest, APermutationOfPeersIsFound) {
  OVERLACE_NEED_GPUS(1);
  run_gpu_threads(3, [](GpuRank& gpu) {
    Donor donor(gpu, 4096, false);
    std::vector<void*> swapped = donor.peers;
    if (gpu.rank == 1) std::swap(swapped[0], swapped[2]);
    std::string text;
    try {
      (void)gpu.runtime.heap().adopt("d", donor.local, donor.bytes, swapped);
    } catch (const Internal& error) {
      text = error.what();
    }
    EXPECT_NE(text.find("heap.adopt \"d\": peers[0] shows the memory of rank 2"), std::string::npos) << text;
    EXPECT_EQ(gpu.read(static_cast<unsigned char*>(donor.local)), 0x40 + gpu.rank);
    donor.give_back(gpu);
  });
}

}  // namespace
}  // namespace overlace::test
