// Transport ce of AllGather and GEMM: copy engines send the rows, beside a kernel that waits for them.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "src/base/status.h"
#include "src/ops/fused/gather_launch.cuh"

namespace overlace::bench {

/// Where a copy engine posts flags: what those of the first call post, `step` more than the slots of this rank hold
/// now. (count, ranks), in device memory. Synchronises.
base::Status initial_totals(const ChannelPod& channel, uint32_t first_id, int count, uint64_t step, uint64_t* totals);

/// Queues the copies of call `epoch` (1, 2, ... of the inbox) to all peers in the order of their need, a flag
/// behind each. `copies` is behind what wrote the shard and behind the call before; the kernel goes behind this in
/// program order, and the caller's stream behind `copies` afterwards.
base::Status queue_copies(const ops::fused::PreparedGather& prepared, uint64_t epoch, cudaStream_t copies);

}  // namespace overlace::bench
