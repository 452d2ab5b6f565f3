// Kernels that do nothing but store: what the SMs of a device reach to a peer, and in its own memory. For calibration
// and benches.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "overlace/handle_pod.h"
#include "overlace/stream.h"
#include "src/base/status.h"

namespace overlace::runtime::cuda_peer {

/// Bytes that a block has in shared memory and pushes over and over; `bytes` of such a push are a multiple.
inline constexpr uint32_t kBulkBytes = 16384;

struct Push {
  enum class By { store, bulk, bulk_add };  // loads and stores; TMA stores; TMA additions of bf16
  By by = By::store;
  int ctas = 1;
  int first = 1, peers = 1;         // to ranks r + first, r + first + 1, .., one after the other; 0: to itself
  uint64_t offset = 0, stride = 0;  // in their heaps, at offset + my rank * stride
  const void* src = nullptr;        // of `bytes`; in bulk its first kBulkBytes, again and again, to one rank
  uint64_t bytes = 0;               // to each
};

/// Queues the kernel on a stream of `device`. `cuda` with the launch error.
base::Status launch_push(int device, StreamRef stream, const ChannelPod& channel, const Push& push);
/// Queues bulk pushes as launch_push() does (hopper/), where `device` is the current one; not_supported on other GPUs.
base::Status launch_bulk_push(int device, cudaStream_t stream, const ChannelPod& channel, const Push& push);

}  // namespace overlace::runtime::cuda_peer
