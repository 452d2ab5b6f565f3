// Tells the owner of a tile that this consumer warpgroup's part of it lies in its inbox, or, of an own one, in the
// result; of a sum, all peers. Or counts it here, for copies.
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
    const int32_t group = group_of(s->groups, *order, tile.at);
    if (!meets_peers(*s)) return count(tile.at.shard, group);
    const uint32_t id = id_of(*s, told.word, group);
    ptx::fence_sys();
    if (told.whose == Whose::owner) {
      device::signal_add_relaxed(s->channel, tile.at.shard, id);
    } else {
      for (int32_t step = 1; step < order->size; ++step)
        device::signal_add_relaxed(s->channel, (order->rank + step) % order->size, id);
    }
  }

 private:
  /// For the stream that waits until the chunk is whole, and the copy engine behind it.
  __device__ __forceinline__ void count(int32_t shard, int32_t chunk) const {
    const int32_t distance = (shard - order->rank + order->size) % order->size;
    if (distance == 0) return;
    ptx::fence_sys();
    device::counter_add_system(s->done, static_cast<uint32_t>(counter_of_chunk(chunk, distance, order->size)));
  }
};

}  // namespace overlace::ops::fused
