// AllGather and GEMM from the host: C (M, N) = A (M, K) B (K, N), where each rank has the rows of A of its shard.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

#include "src/base/status.h"
#include "src/ops/fused/exchange_host.cuh"
#include "src/ops/fused/instances.h"

namespace overlace::ops::fused {

enum class Arrival : int32_t { rows, k_slab };
/// store_own: idle warps of the kernel push; nothing else is queued, graphs may capture it. ce: copies on a stream of
/// their own, which who asks for it queues (bench/fused/copies.cc): its buffer is fixed when they are queued.
enum class GatherTransport : int32_t { store_own, ce };

/// The inbox: two buffers of M K elements. `first_id`: ready, the first of `pieces`.
struct GatherState : ExchangeState {
  uint64_t* totals = nullptr;  // ce: (pieces, ranks) in device memory, kShares above the words
};

struct GatherArgs : FusedArgs {
  const void* shard = nullptr;  // (rows of this rank, K)
  GatherTransport transport = GatherTransport::store_own;
  Arrival arrival = Arrival::k_slab;  // rows: with ce only
  int pieces = 1;                     // a shard arrives in
  const void* bias = nullptr;         // (N) of the output's type
  bool is_gated = false;              // C is (M, N / 2): swiglu of column 2i and the next
  bool waits = true;                  // false: GatherParams::waits
  GatherState state;
};

/// Everything a launch needs; reusable while the pointers hold.
struct PreparedGather {
  GatherGemmParams params;
  const Instance* instance = nullptr;
  int clusters = 0;
  int64_t k_bytes = 0, shard_pitch_bytes = 0;
  Arrival arrival = Arrival::rows;
  GatherTransport transport = GatherTransport::store_own;
};
/// invalid_argument names the argument, the value and what is wanted. ce: not_supported where the runtime has not
/// proved that a copy may signal.
base::Result<PreparedGather> prepare_gather(const Instance& instance, const GatherArgs& args);
/// Makes the list of items, so that prepare_gather with the same sizes allocates nothing. No operands.
base::Status prepare_gather_items(const Instance& instance, const GatherArgs& args);

/// Queues the kernel. `uses_pdl` as launch() has it; not with ce, where events order the calls.
base::Status launch_gather(const PreparedGather& prepared, bool uses_pdl, cudaStream_t stream);

}  // namespace overlace::ops::fused
