#include "tests/gpu/support/memory_exchanges.h"

#include <cstring>
#include <string>

#include "src/runtime/backend/cuda_peer/stream_ops.h"
#include "tests/gpu/support/kernels.h"
#include "tests/gpu/support/objects.h"

namespace overlace::test {
namespace {

constexpr size_t kPart = 1 << 20;

uint32_t seed_of(int from, int to, int round) {
  return static_cast<uint32_t>(from * 1009 + to * 31 + round * 100003 + 1);
}
uint32_t stripe_seed(int rank, int round) { return static_cast<uint32_t>(rank * 77 + round * 1013 + 5); }

}  // namespace

Donor::Donor(GpuRank& gpu, size_t donated, bool between_processes) : bytes(donated) {
  EXPECT_CUDA(cudaMalloc(&local, bytes));
  EXPECT_CUDA(cudaMemsetAsync(local, 0x40 + gpu.rank, bytes, gpu.stream));
  EXPECT_CUDA(cudaStreamSynchronize(gpu.stream));
  struct Offer {
    void* address;
    int device;
    cudaIpcMemHandle_t handle;
  } mine{local, gpu.runtime.device(), {}};
  if (between_processes) {
    EXPECT_CUDA(cudaIpcGetMemHandle(&mine.handle, local));
  }
  const std::vector<Bytes> all = gpu.team.exchange(std::as_bytes(std::span(&mine, 1)));
  for (int r = 0; r < gpu.size; ++r) {
    Offer offer{};
    std::memcpy(&offer, all[static_cast<size_t>(r)].data(), sizeof offer);
    void* address = offer.address;
    if (r != gpu.rank && between_processes) {
      EXPECT_CUDA(cudaIpcOpenMemHandle(&address, offer.handle, cudaIpcMemLazyEnablePeerAccess));
      opened.push_back(address);
    } else if (offer.device != mine.device) {
      const cudaError_t code = cudaDeviceEnablePeerAccess(offer.device, 0);
      EXPECT_TRUE(code == cudaSuccess || code == cudaErrorPeerAccessAlreadyEnabled);
      (void)cudaGetLastError();
    }
    peers.push_back(address);
  }
}

void Donor::give_back(GpuRank& gpu) {
  gpu.wait();
  gpu.team.barrier();
  for (void* address : opened) EXPECT_CUDA(cudaIpcCloseMemHandle(address));
  gpu.team.barrier();
  EXPECT_CUDA(cudaFree(local));
}

void put_everywhere(GpuRank& gpu, bool between_processes) {
  EXPECT_CUDA(load_object_kernels());
  Donor donor(gpu, kPart * static_cast<size_t>(gpu.size) + 256, between_processes);
  const Region region = gpu.runtime.heap().adopt("donor", donor.local, donor.bytes, donor.peers);
  EXPECT_EQ(gpu.read(static_cast<unsigned char*>(donor.local)), 0x40 + gpu.rank) << "adopting left its mark";
  const RegionPod pod = region.pod(gpu.team);
  const SignalIds ids = gpu.channel.ids(1, Domain::device, "adopt");
  char* source = gpu.device_array<char>(kPart);
  auto* wrong = gpu.device_array<uint64_t>(1);
  auto* code = gpu.device_array<int32_t>(1);
  gpu.team.barrier();
  int round = 0;
  for (const Put how : {Put::cta, Put::warp, Put::tma, Put::thread}) {
    const uint64_t bytes = how == Put::thread ? 4096 : kPart;
    for (int step = 1; step <= gpu.size; ++step) {
      const int to = (gpu.rank + step) % gpu.size;
      launch_fill(gpu.stream, source, bytes, seed_of(gpu.rank, to, round));
      launch_region_put(gpu.stream, gpu.pod(), pod, how, to, kPart * static_cast<size_t>(gpu.rank), source, bytes,
                        ids.first);
    }
    for (int from = 0; from < gpu.size; ++from) {
      launch_wait(gpu.stream, gpu.pod(), from, ids.first, 1, code);
      launch_compare(gpu.stream, static_cast<char*>(donor.local) + kPart * static_cast<size_t>(from), bytes,
                     seed_of(from, gpu.rank, round), wrong);
    }
    EXPECT_EQ(gpu.read(code), 0);
    EXPECT_EQ(gpu.read(wrong), 0u) << "round " << round;
    gpu.team.barrier();
    ++round;
  }
  // A stream reaches it by address.
  const int to = (gpu.rank + 1) % gpu.size, from = (gpu.rank + gpu.size - 1) % gpu.size;
  launch_fill(gpu.stream, source, kPart, seed_of(gpu.rank, to, round));
  EXPECT_TRUE(
      runtime::cuda_peer::stream_put(static_cast<char*>(region.base(to)) + kPart * static_cast<size_t>(gpu.rank),
                                     source, kPart, gpu.stream)
          .ok());
  gpu.wait();
  gpu.team.barrier();
  launch_compare(gpu.stream, static_cast<char*>(donor.local) + kPart * static_cast<size_t>(from), kPart,
                 seed_of(from, gpu.rank, round), wrong);
  EXPECT_EQ(gpu.read(wrong), 0u);
  donor.give_back(gpu);
}

std::vector<StripePart> shards(int rank, int n) {
  std::vector<StripePart> parts;
  for (int step = 1; step <= n; ++step) {
    const int owner = (rank + step) % n;
    parts.push_back({owner, kStripePage * static_cast<size_t>(1 + (owner + rank) % 2)});
  }
  if (rank % 2 == 1) parts.push_back({0, kStripePage});
  return parts;
}

void store_and_find(GpuRank& gpu) {
  SymmetricHeap& heap = gpu.runtime.heap();
  ASSERT_EQ(heap.stripe_granule(), kStripePage);
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
    launch_fill(gpu.stream, range.data(), range.bytes(), stripe_seed(gpu.rank, round));
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
        for (size_t i = 0; i < seen.size(); ++i) differ += seen[i] != pattern_byte(stripe_seed(from, round), first + i);
        ASSERT_EQ(differ, 0u) << "part " << p << " of rank " << from;
      }
    }
    ASSERT_EQ(owned, range.owned().size());
    gpu.team.barrier();
    // The other direction: owners store, the rank reads through its range.
    for (const StripePiece& piece : range.owned())
      launch_fill(gpu.stream, piece.data, piece.bytes, stripe_seed(gpu.rank, 100 + piece.part));
    launch_rounds(gpu.stream, gpu.pod(), Round::signal_add, ids.first, 1, code);
    for (const StripePiece& part : range.parts())
      launch_compare(gpu.stream, part.data, part.bytes, stripe_seed(part.rank, 100 + part.part), wrong);
    EXPECT_EQ(gpu.read(wrong), 0u);
    gpu.team.barrier();
    if (round < 2) heap.free(range);  // the last goes at close
  }
}

}  // namespace overlace::test
