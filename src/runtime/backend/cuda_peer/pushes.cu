#include "overlace/device/tma.cuh"
#include "src/runtime/backend/cuda_peer/check.h"
#include "src/runtime/backend/cuda_peer/preload.h"
#include "src/runtime/backend/cuda_peer/pushes.h"

namespace overlace::runtime::cuda_peer {
namespace {

constexpr uint64_t kPiece = 256 * 1024;
constexpr int kStoreThreads = 1024, kBulkThreads = 128, kMostInFlight = 8;

__global__ __launch_bounds__(kStoreThreads) void store(const __grid_constant__ ChannelPod channel,
                                                       const __grid_constant__ Push push) {
  const TeamPod& team = channel.team;
  const auto* src = static_cast<const char*>(push.src);
  const uint64_t base = push.offset + static_cast<uint64_t>(team.rank) * push.stride;
  for (int step = push.first; step < push.first + push.peers; ++step) {
    const int to = (team.rank + step) % team.size;
    for (uint64_t at = blockIdx.x * kPiece; at < push.bytes; at += gridDim.x * kPiece)
      device::put_cta(channel, to, base + at, src + at, push.bytes - at < kPiece ? push.bytes - at : kPiece);
  }
}

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

const RegisteredKernel kLoadStore{reinterpret_cast<const void*>(&store)};
const RegisteredKernel kLoadBulk{reinterpret_cast<const void*>(&bulk)};

}  // namespace

base::Status launch_push(int device, StreamRef stream, const ChannelPod& channel, const Push& push) {
  const DeviceGuard guard(device);
  auto* const on = static_cast<cudaStream_t>(stream.cuda_stream);
  if (push.by == Push::By::store) {
    store<<<push.ctas, kStoreThreads, 0, on>>>(channel, push);
  } else {
    bulk<<<push.ctas, kBulkThreads, 0, on>>>(channel, push);
  }
  return cuda_status(cudaGetLastError(), "launch of a push");
}

}  // namespace overlace::runtime::cuda_peer
