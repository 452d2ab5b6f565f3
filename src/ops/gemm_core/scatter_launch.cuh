// GEMM and ReduceScatter from the host: C (rows of this rank, N) = those rows of the sum over ranks of A B, where each
// rank has a part of K.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

#include "src/base/status.h"
#include "src/ops/gemm_core/exchange_host.cuh"
#include "src/ops/gemm_core/scatter.cuh"
#include "src/ops/gemm_core/scatter_instances.h"
#include "src/runtime/backend/cuda_peer/stream_ops.h"

namespace overlace::ops::gemm_core {

/// tma_slot: the kernel stores into the owners' inboxes; nothing else is queued, graphs may capture it. ce: it stores
/// here, copies on a stream of their own (queue_scatter) bring groups of tiles to the owners.
enum class ScatterTransport : int32_t { tma_slot, ce };

/// `first_id`: kMaxGroups ids, of CTAs; with ce of streams.
struct ScatterState : ExchangeState {
  const CountersPod* triggers = nullptr;  // ce: kMaxGroups per rank, 0
  uint64_t* totals = nullptr;             // ce: (kMaxGroups, ranks) in device memory, from initial_totals(1)
  void* partial = nullptr;                // ce: (M, N), rows of peers
};

/// Bytes of a buffer of the inbox.
uint64_t scatter_inbox_bytes(std::span<const int64_t> row_offsets, int64_t n);

struct ScatterArgs : FusedArgs {
  const void* a = nullptr;     // (M, K of this rank)
  const void* bias = nullptr;  // (N), or null
  ScatterTransport transport = ScatterTransport::tma_slot;
  TileOrderKind order = TileOrderKind::own_last;  // or, not with ce, interleaved
  int groups = kMaxGroups;                        // that the tiles for an owner are told in, at most
  bool rounds_own = false;                        // level 2: the own partial is rounded too
  float alpha = 1;                                // of the sum; the bias is added behind it
  ScatterState state;
};

/// Everything a launch needs; reusable while the pointers hold. All ranks use the same instance, order, groups and
/// swizzle.
struct PreparedScatter {
  ScatterGemmParams params;
  const Instance* instance = nullptr;
  int clusters = 0;
  int64_t tile_cols = 0;  // of a cluster
  const char* partial = nullptr;
};
/// invalid_argument names the argument, the value and what is wanted.
base::Result<PreparedScatter> prepare_scatter(const Instance& instance, const ScatterArgs& args);
/// Queues; capturable. `starts_early` as launch() has it.
base::Status launch_scatter(const PreparedScatter& prepared, bool starts_early, cudaStream_t stream);

/// ce: queues the copies of call `epoch` (1, 2, ... of the inbox), behind waits for the tiles of the kernel, which is
/// queued before. `copies` is behind the call before; the caller's stream goes behind `copies` afterwards.
base::Status queue_scatter(const PreparedScatter& prepared, uint64_t epoch, const runtime::cuda_peer::StreamCaps& caps,
                           cudaStream_t copies);

}  // namespace overlace::ops::gemm_core
