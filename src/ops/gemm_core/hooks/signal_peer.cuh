// Tells the owner of a tile that this consumer warpgroup's part of it lies in its inbox, or, of an own one, in the
// result; of a sum, all peers.
#pragma once

#include "src/ops/gemm_core/exchange.cuh"
#include "src/ops/gemm_core/mainloop.cuh"

namespace overlace::ops::gemm_core {

/// Of the store thread, which has waited until its bulk stores were complete.
struct SignalPeer {
  static constexpr bool kNeedsCompletion = true;
  const ScatterParams* s;
  const TileOrder* order;
  __device__ __forceinline__ void done(const Tile& tile) {
    const bool is_product = tile.work == Work::product;
    if (!is_product && (tile.work == Work::copy || !s->sums_travel)) return;
    const auto group = static_cast<uint32_t>(group_of(s->groups, *order, tile.at));
    ptx::fence_sys();
    if (is_product) {
      device::signal_add_relaxed(s->channel, tile.at.shard, s->arrive_id + group);
    } else {
      for (int32_t step = 1; step < order->size; ++step)
        device::signal_add_relaxed(s->channel, (order->rank + step) % order->size, s->ready_id + group);
    }
  }
};

}  // namespace overlace::ops::gemm_core
