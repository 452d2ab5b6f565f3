// Stores a tile where its rows belong: a peer's into my slot of its inbox, my own into the result. Sums also into the
// inboxes of all peers, and theirs into the result.
#pragma once

#include "src/device/ptx/barrier.cuh"
#include "src/device/ptx/tensor.cuh"
#include "src/gemm_core/mainloop.cuh"
#include "src/ops/fused/exchange.cuh"

namespace overlace::ops::fused {

struct StoreSlot {
  static constexpr bool kGates = false;
  const ScatterParams* s;
  const TileOrder* order;
  const CUtensorMap* c;  // my rows
  uint32_t buffer = 0;

  /// All lanes of a store warp.
  __device__ __forceinline__ void begin() {
    ptx::wait_for_previous_grid();
    buffer = buffer_of_call(*s);
    // The call may end once the loads are over: the epoch that this has read must not have moved on before.
    ptx::named_barrier_arrive<kBegunThreads>(kBegunBarrier);
  }
  /// Rows beyond those of the shard are clipped: free offsets, empty shards.
  __device__ __forceinline__ void store(const Tile& tile, int32_t row, int32_t col, uint32_t shared) {
    const int32_t shard = tile.at.shard, in_shard = row - order->row_begin[shard];
    const bool is_own = shard == order->rank;
    const CUtensorMap* const in_result = is_own ? c : &s->result[shard];
    ptx::store_box(goes_to_slot(tile.work, is_own) ? &s->to[buffer][shard] : in_result, col, in_shard, shared);
    if (told_by(tile.work, s->sums_travel).whose != Whose::everybody) return;
    for (int32_t step = 1; step < order->size; ++step)
      ptx::store_box(&s->sums_to[buffer][(order->rank + step) % order->size], col, in_shard, shared);
  }
};

}  // namespace overlace::ops::fused
