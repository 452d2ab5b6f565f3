// Pushes by TMA, for Hopper GPUs alone (cmake/overlace_module.cmake).
#include "overlace/device/tma.cuh"
#include "src/base/format.h"
#include "src/runtime/backend.h"
#include "src/runtime/backend/cuda_peer/check.h"
#include "src/runtime/backend/cuda_peer/preload.h"
#include "src/runtime/backend/cuda_peer/pushes.h"
#include "src/spec/fusable.h"

namespace overlace::runtime::cuda_peer {
namespace {

constexpr int kBulkThreads = 128, kMostInFlight = 8;

__global__ __launch_bounds__(kBulkThreads) void bulk(const __grid_constant__ ChannelPod channel,
                                                     const __grid_constant__ Push push) {
  __shared__ alignas(128) uint4 stage[kBulkBytes / sizeof(uint4)];
  const TeamPod& team = channel.team;
  for (uint32_t i = threadIdx.x; i < kBulkBytes / sizeof(uint4); i += blockDim.x)
    stage[i] = static_cast<const uint4*>(push.src)[i];
  device::ptx::fence_shared_to_bulk();
  __syncthreads();
  if (threadIdx.x != 0) return;
  const int to = (team.rank + push.first) % team.size;
  const uint64_t base = push.offset + static_cast<uint64_t>(team.rank) * push.stride;
  for (uint64_t at = uint64_t{blockIdx.x} * kBulkBytes; at < push.bytes; at += uint64_t{gridDim.x} * kBulkBytes) {
    if (push.by == Push::By::bulk_add) {
      device::add_tma(channel, to, base + at, reinterpret_cast<const __nv_bfloat16*>(stage), kBulkBytes);
    } else {
      device::put_tma(channel, to, base + at, stage, kBulkBytes);
    }
    device::ptx::bulk_wait_read<kMostInFlight>();
  }
  device::fence();
}

const RegisteredKernel kLoad{reinterpret_cast<const void*>(&bulk)};

}  // namespace

base::Status launch_bulk_push(int device, cudaStream_t stream, const ChannelPod& channel, const Push& push) {
  const int found = cuda_device(device).compute_capability;
  if (found != spec::kFusedCapability)
    return base::error(Errc::not_supported, "a bulk push: GPU {} has {}; wanted: {}", device,
                       spec::capability_text(found), spec::capability_text(spec::kFusedCapability));
  bulk<<<push.ctas, kBulkThreads, 0, stream>>>(channel, push);
  return cuda_status(cudaGetLastError(), "launch of a bulk push");
}

}  // namespace overlace::runtime::cuda_peer
