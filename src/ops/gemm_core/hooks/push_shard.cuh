// Pushes this rank's shard to all peers with the warps that have nothing else to do.
#pragma once

#include "src/device/ptx/barrier.cuh"
#include "src/ops/gemm_core/gather.cuh"
#include "src/ops/gemm_core/mainloop.cuh"

namespace overlace::ops::gemm_core {

/// Warps 1 to 3 of the first CTAs, in k_slab those whose first tile is of the own shard: they wait for nobody. Slab by
/// slab; what is loaded once is stored to every peer. When all three have stored their parts of a slab, one of them
/// tells the peers: one fence, then plain adds. They take turns at that, since the fence costs its warp about 2 us.
template <class Params>
struct PushShard {
  static constexpr bool kPushes = true;
  static constexpr uint32_t kWarps = 3, kBarriers = 4;          // nobody gets more than kWarps slabs ahead
  static constexpr int kLoads = 4;                              // in flight per thread
  static constexpr int kLastHop = Params::kGathersOwn ? 1 : 0;  // beyond the peers: to this rank itself
  const Params* g;

  __device__ void run() {
    if (blockIdx.x >= static_cast<uint32_t>(g->push_ctas)) return;
    ptx::wait_for_previous_grid();
    const uint32_t warp = threadIdx.x / 32 - 1, lane = threadIdx.x % 32;
    const uint64_t to =
        device::inbox_offset(g->inbox) + static_cast<uint64_t>(g->first_row) * static_cast<uint32_t>(g->row_units) * 16;
    const int32_t width = g->slab_blocks * (kTileK * 2 / 16);
    for (uint32_t slab = 0; slab < static_cast<uint32_t>(g->slabs); ++slab) {
      const int32_t first = static_cast<int32_t>(slab) * width, left = g->row_units - first;
      push_slab(to, first, left < width ? left : width, warp, lane);
      const uint32_t barrier = 1 + slab % kBarriers;
      if (warp != slab % kWarps) {
        ptx::named_barrier_arrive<kWarps * 32>(barrier);
        continue;
      }
      ptx::named_barrier_sync<kWarps * 32>(barrier);
      if (lane == 0) tell(slab);
      __syncwarp();
      if (slab + 1 == static_cast<uint32_t>(g->slabs)) arrive(*g);
    }
  }

 private:
  /// Units of 512 bytes of a row, by turns over all pushing warps; `first` and `width` in pieces of 16 bytes.
  __device__ __forceinline__ void push_slab(uint64_t to, int32_t first, int32_t width, uint32_t warp, uint32_t lane) {
    const TeamPod& team = g->channel.team;
    const int32_t segments = (width + 31) / 32, units = g->shard_rows * segments;
    const auto step = static_cast<int32_t>(static_cast<uint32_t>(g->push_ctas) * kWarps);
    for (auto u = static_cast<int32_t>(blockIdx.x * kWarps + warp); u < units; u += kLoads * step) {
      uint4 data[kLoads];
      int64_t at[kLoads];  // in the shard, as the inbox has it; < 0: nothing
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        const int32_t unit = u + i * step, row = unit / segments;
        const int32_t col = (unit - row * segments) * 32 + static_cast<int32_t>(lane);
        at[i] = -1;
        if (unit < units && col < width) {
          at[i] = static_cast<int64_t>(row) * g->row_units + first + col;
          data[i] = g->shard[row * g->shard_pitch + first + col];
        }
      }
      for (int hop = 1; hop < team.size + kLastHop; ++hop) {  // who needs this shard first comes first
        const int peer = (team.rank - hop + team.size) % team.size;
        auto* const there = static_cast<uint4*>(device::peer_ptr(team, peer, to));
#pragma unroll
        for (int i = 0; i < kLoads; ++i)
          if (at[i] >= 0) there[at[i]] = data[i];
      }
    }
  }

  __device__ __forceinline__ void tell(uint32_t slab) {
    const TeamPod& team = g->channel.team;
    const auto ctas = static_cast<uint32_t>(g->push_ctas);
    const uint32_t share = (blockIdx.x + 1) * kShares / ctas - blockIdx.x * kShares / ctas;
    // NOTE: cumulative over the three warps, whose barrier is behind; a fence in every writer would stall every warp.
    ptx::fence_proxy_async();
    ptx::fence_sys();
    for (int hop = 1; hop < team.size + kLastHop; ++hop)
      device::signal_add_relaxed(g->channel, (team.rank - hop + team.size) % team.size, g->ready_id + slab, share);
  }
};

}  // namespace overlace::ops::gemm_core
