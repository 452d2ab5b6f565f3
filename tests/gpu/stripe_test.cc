// Striped ranges on GPUs: kernels that know nothing of ranks store into one range, the owners find their parts.
#include <string>
#include <vector>

#include "tests/gpu/support/gpu_ranks.h"
#include "tests/gpu/support/kernels.h"

namespace overlace::test {
namespace {

constexpr size_t kPage = size_t{2} << 20;

/// A shard per rank, behind its own first; sizes differ; odd ranks have two parts of rank 0.
std::vector<StripePart> shards(int rank, int n) {
  std::vector<StripePart> parts;
  for (int step = 1; step <= n; ++step) {
    const int owner = (rank + step) % n;
    parts.push_back({owner, kPage * static_cast<size_t>(1 + (owner + rank) % 2)});
  }
  if (rank % 2 == 1) parts.push_back({0, kPage});
  return parts;
}

uint32_t seed_of(int rank, int round) { return static_cast<uint32_t>(rank * 77 + round * 1013 + 5); }

size_t free_bytes() {
  size_t left = 0, total = 0;
  EXPECT_CUDA(cudaMemGetInfo(&left, &total));
  return left;
}

void store_and_find(GpuRank& gpu) {
  SymmetricHeap& heap = gpu.runtime.heap();
  ASSERT_EQ(heap.stripe_granule(), kPage);
  const SignalIds ids = gpu.channel.ids(1, Domain::device, "stripe");
  auto* code = gpu.device_array<int32_t>(1);
  auto* wrong = gpu.device_array<uint64_t>(1);
  for (int round = 0; round < 3; ++round) {
    const StripedRange range = heap.stripe(shards(gpu.rank, gpu.size), "c");
    std::vector<uint8_t> seen;
    for (const StripePiece& part : range.parts()) {
      seen.assign(part.bytes, 1);
      gpu.fetch(seen.data(), part.data, part.bytes);
      EXPECT_EQ(std::vector<uint8_t>(part.bytes, 0), seen) << "fresh pages are zero, part " << part.part;
    }
    gpu.team.barrier();
    launch_fill(gpu.stream, range.data(), range.bytes(), seed_of(gpu.rank, round));
    // The completion of all ranks' stores, in stream order.
    launch_rounds(gpu.stream, gpu.pod(), Round::signal_add, ids.first, 1, code);
    EXPECT_EQ(gpu.read(code), 0);
    size_t owned = 0;
    for (int from = 0; from < gpu.size; ++from) {
      const std::vector<StripePart> parts = shards(from, gpu.size);
      size_t first = 0;
      for (size_t p = 0; p < parts.size(); first += parts[p++].bytes) {
        if (parts[p].rank != gpu.rank) continue;
        ASSERT_LT(owned, range.owned().size());
        const StripePiece& piece = range.owned()[owned++];
        ASSERT_EQ(piece.rank, from);
        ASSERT_EQ(piece.part, static_cast<int>(p));
        ASSERT_EQ(piece.bytes, parts[p].bytes);
        seen.resize(piece.bytes);
        gpu.fetch(seen.data(), piece.data, piece.bytes);
        size_t differ = 0;
        for (size_t i = 0; i < seen.size(); ++i) differ += seen[i] != pattern_byte(seed_of(from, round), first + i);
        ASSERT_EQ(differ, 0u) << "part " << p << " of rank " << from;
      }
    }
    ASSERT_EQ(owned, range.owned().size());
    gpu.team.barrier();
    // The other direction: owners store, the rank reads through its range.
    for (const StripePiece& piece : range.owned())
      launch_fill(gpu.stream, piece.data, piece.bytes, seed_of(gpu.rank, 100 + piece.part));
    launch_rounds(gpu.stream, gpu.pod(), Round::signal_add, ids.first, 1, code);
    for (const StripePiece& part : range.parts())
      launch_compare(gpu.stream, part.data, part.bytes, seed_of(part.rank, 100 + part.part), wrong);
    EXPECT_EQ(gpu.read(wrong), 0u);
    gpu.team.barrier();
    if (round < 2) heap.free(range);  // the last goes at close
  }
}

TEST(GpuStripeTest, ThreadsStoreAndOwnersFind) {
  OVERLACE_NEED_GPUS(1);
  for (const int n : {1, 2, 4}) run_gpu_threads(n, store_and_find);
}

TEST(GpuStripeTest, ProcessesStoreAndOwnersFind) {
  OVERLACE_NEED_GPUS(2);
  for (const int n : {1, 2, 4})
    if (gpu_count() >= n) run_gpu_processes(n, {"OVERLACE_HEAP=vmm"}, store_and_find);
}

TEST(GpuStripeTest, FreedMemoryComesBack) {
  OVERLACE_NEED_GPUS(1);
  run_gpu_threads(1, [](GpuRank& gpu) {
    const std::vector<StripePart> parts(8, {0, 16 * kPage});
    gpu.runtime.heap().free(gpu.runtime.heap().stripe(parts, "first"));
    const size_t before = free_bytes();
    const StripedRange range = gpu.runtime.heap().stripe(parts, "c");
    EXPECT_LE(free_bytes(), before - range.bytes());
    gpu.runtime.heap().free(range);
    EXPECT_EQ(free_bytes(), before);
  });
}

TEST(GpuStripeTest, AnIpcHeapRefusesWithTheReason) {
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
    EXPECT_NE(refused({{0, kPage}}).find("is being captured"), std::string::npos);
    cudaGraph_t graph = nullptr;
    EXPECT_CUDA(cudaStreamEndCapture(gpu.stream, &graph));
    EXPECT_CUDA(cudaGraphDestroy(graph));
  });
}

}  // namespace
}  // namespace overlace::test
