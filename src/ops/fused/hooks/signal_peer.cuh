// Tells the owner of a tile that this consumer warpgroup's part of it lies in its inbox, or, of an own one, in the
// result; of a sum, all peers.
#pragma once

#include "src/gemm_core/mainloop.cuh"
#include "src/ops/fused/exchange.cuh"

namespace overlace::ops::fused {

/// Signals of the store thread, which has waited until its bulk stores were complete.
struct SignalPeer {
  static constexpr bool kNeedsCompletion = true, kMayWait = false;
  const ScatterParams* s;
  const TileOrder* order;
  __device__ __forceinline__ void done(const Tile& tile) {
    const Words told = told_by(tile.work, s->sums_travel);
    if (told.whose == Whose::nobody) return;
    const uint32_t id = id_of(*s, told.word, group_of(s->groups, *order, tile.at));
    ptx::fence_sys();
    if (told.whose == Whose::owner) {
      device::signal_add_relaxed(s->channel, tile.at.shard, id);
    } else {
      for (int32_t step = 1; step < order->size; ++step)
        device::signal_add_relaxed(s->channel, (order->rank + step) % order->size, id);
    }
  }
};

}  // namespace overlace::ops::fused
