// Striped ranges on GPUs, ranks as threads. Processes are in memory_processes_test.cc.
#include <string>
#include <vector>

#include "tests/gpu/support/memory_exchanges.h"

namespace overlace::test {
namespace {

size_t free_bytes() {
  size_t left = 0, total = 0;
  EXPECT_CUDA(cudaMemGetInfo(&left, &total));
  return left;
}

TEST(GpuStripeTest, ThreadsStoreAndOwnersFind) {
  OVERLACE_NEED_GPUS(1);
  for (const int n : {1, 2, 4}) run_gpu_threads(n, store_and_find);
}

TEST(GpuStripeTest, FreedMemoryComesBack) {
  OVERLACE_NEED_GPUS(1);
  run_gpu_threads(1, [](GpuRank& gpu) {
    const std::vector<StripePart> parts(8, {0, 16 * kStripePage});
    gpu.runtime.heap().free(gpu.runtime.heap().stripe(parts, "first"));
    const size_t before = free_bytes();
    const StripedRange range = gpu.runtime.heap().stripe(parts, "c");
    EXPECT_LE(free_bytes(), before - range.bytes());
    gpu.runtime.heap().free(range);
    EXPECT_EQ(free_bytes(), before);
  });
}

TEST(GpuStripeTest, WrongPartsAndCapturesAreRefused) {
  OVERLACE_NEED_GPUS(1);
  run_gpu_threads(2, [](GpuRank& gpu) {
    const auto refused = [&](const std::vector<StripePart>& parts) {
      try {
        (void)gpu.runtime.heap().stripe(parts, "c");
      } catch (const InvalidArgument& error) {
        return std::string(error.what());
      }
      return std::string("nothing was thrown");
    };
    EXPECT_NE(refused({{0, 4096}}).find("part 0 has 4096 bytes, wanted a multiple of 2097152"), std::string::npos);
    EXPECT_CUDA(cudaStreamBeginCapture(gpu.stream, cudaStreamCaptureModeThreadLocal));
    EXPECT_NE(refused({{0, kStripePage}}).find("is being captured"), std::string::npos);
    cudaGraph_t graph = nullptr;
    EXPECT_CUDA(cudaStreamEndCapture(gpu.stream, &graph));
    EXPECT_CUDA(cudaGraphDestroy(graph));
  });
}

}  // namespace
}  // namespace overlace::test
