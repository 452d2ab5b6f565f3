// Memory that somebody else made symmetric: plain allocations with peer access, and cudaIpc mappings between processes.
#include <cstring>
#include <string>
#include <vector>

#include "src/runtime/backend/cuda_peer/stream_ops.h"
#include "tests/gpu/support/gpu_ranks.h"
#include "tests/gpu/support/objects.h"

namespace overlace::test {
namespace {

namespace cp = runtime::cuda_peer;

constexpr size_t kPart = 1 << 20;

uint32_t seed_of(int from, int to, int round) {
  return static_cast<uint32_t>(from * 1009 + to * 31 + round * 100003 + 1);
}

/// What each rank gives: an allocation of its own, and where it reaches those of the others. Freed by the caller once
/// the runtime is done with it.
struct Donor {
  Donor(GpuRank& gpu, size_t donated, bool between_processes) : bytes(donated) {
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
  /// After all ranks have finished.
  void give_back(GpuRank& gpu) {
    gpu.wait();
    gpu.team.barrier();
    for (void* address : opened) EXPECT_CUDA(cudaIpcCloseMemHandle(address));
    gpu.team.barrier();
    EXPECT_CUDA(cudaFree(local));
  }
  size_t bytes;
  void* local = nullptr;
  std::vector<void*> peers, opened;
};

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
  EXPECT_TRUE(cp::stream_put(static_cast<char*>(region.base(to)) + kPart * static_cast<size_t>(gpu.rank), source, kPart,
                             gpu.stream)
                  .ok());
  gpu.wait();
  gpu.team.barrier();
  launch_compare(gpu.stream, static_cast<char*>(donor.local) + kPart * static_cast<size_t>(from), kPart,
                 seed_of(from, gpu.rank, round), wrong);
  EXPECT_EQ(gpu.read(wrong), 0u);
  donor.give_back(gpu);
}

TEST(GpuAdoptTest, ThreadsPutIntoPlainAllocations) {
  OVERLACE_NEED_GPUS(1);
  for (const int n : {1, 2, 4}) run_gpu_threads(n, [](GpuRank& gpu) { put_everywhere(gpu, false); });
}

TEST(GpuAdoptTest, MoreRanksThanThePodHolds) {
  OVERLACE_NEED_GPUS(2);
  run_gpu_threads(10, [](GpuRank& gpu) { put_everywhere(gpu, false); });
}

TEST(GpuAdoptTest, ProcessesPutIntoIpcMappings) {
  OVERLACE_NEED_GPUS(2);
  run_gpu_processes(gpu_count() >= 4 ? 4 : 2, {}, [](GpuRank& gpu) { put_everywhere(gpu, true); });
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
