#include "overlace/device/put.cuh"
#include "src/runtime/backend/cuda_peer/check.h"
#include "src/runtime/backend/cuda_peer/preload.h"
#include "src/runtime/backend/cuda_peer/pushes.h"

namespace overlace::runtime::cuda_peer {
namespace {

constexpr uint64_t kPiece = 256 * 1024;
constexpr int kStoreThreads = 1024;

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

const RegisteredKernel kLoad{reinterpret_cast<const void*>(&store)};

}  // namespace

base::Status launch_push(int device, StreamRef stream, const ChannelPod& channel, const Push& push) {
  const DeviceGuard guard(device);
  auto* const on = static_cast<cudaStream_t>(stream.cuda_stream);
  if (push.by != Push::By::store) return launch_bulk_push(device, on, channel, push);
  store<<<push.ctas, kStoreThreads, 0, on>>>(channel, push);
  return cuda_status(cudaGetLastError(), "launch of a push");
}

}  // namespace overlace::runtime::cuda_peer
