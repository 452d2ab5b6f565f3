// Pushes this rank's shard to all peers with the warps that have nothing else to do.
#pragma once

#include "src/device/ptx/barrier.cuh"
#include "src/gemm_core/mainloop.cuh"
#include "src/ops/fused/exchange.cuh"

namespace overlace::ops::fused {

/// Warps 1 to 3, which wait for nobody. Slab by slab in `push_parts` parts each; what is loaded once is stored to every
/// peer. When all three have stored their shares of a part, one of them tells the peers: one fence, then plain adds.
/// They take turns at that, since the fence costs its warp about 2 us. Parts are drawn, those of the first slab first,
/// so that any resident CTA sends what there is. Where 0.7 us for a number would be too much, each CTA pushes the part
/// of its place, and the first one also those whose CTAs have not started after kStartGraceNs. If they start after all,
/// they push the same bytes once more, which does no harm before this grid ends; whoever claims a part first tells it.
template <class Params>
struct PushShard {
  static constexpr bool kPushes = true, kMoves = false;
  static constexpr uint32_t kWarps = 3, kBarriers = 4;  // nobody gets more than kWarps slabs ahead
  static constexpr uint32_t kLookNs = 40;
  static constexpr uint64_t kStartGraceNs = 20000;
  static constexpr int kLoads = 4;                              // in flight per thread
  static constexpr int kLastHop = Params::kGathersOwn ? 1 : 0;  // beyond the peers: to this rank itself
  const Params* g;

  template <class Config>
  __device__ void run(const Cta<Config>& cta) {
    if constexpr (Params::kDrawsParts) {
      if (g->push_parts != 0) push_drawn(cta);
    } else {
      const uint32_t in_cluster = Config::kCluster == 1 ? 0 : ptx::cluster_rank();
      const uint32_t part = static_cast<uint32_t>(cta.cluster) * Config::kCluster + in_cluster;
      if (part < static_cast<uint32_t>(g->push_parts)) push_own(part);
    }
  }

 private:
  __device__ __forceinline__ uint64_t my_rows() const {
    return device::inbox_offset(g->inbox) +
           static_cast<uint64_t>(g->first_row) * static_cast<uint32_t>(g->row_units) * 16;
  }

  __device__ __forceinline__ void push_own(uint32_t part) {
    ptx::wait_for_previous_grid();
    const uint32_t warp = threadIdx.x / 32 - 1, lane = threadIdx.x % 32;
    const uint64_t to = my_rows();
    const auto call = static_cast<uint32_t>(device::inbox_epoch(g->inbox));
    uint32_t before = call;
    if (warp == 0 && lane == 0) before = atomicExch(g->claims + part, call);
    push_part(to, 0, g->row_units, part, warp, lane);
    __syncwarp();
    if (warp != 0) return ptx::named_barrier_arrive<kWarps * 32>(1);
    ptx::named_barrier_sync<kWarps * 32>(1);
    if (lane == 0 && before != call) tell(0, part);
    __syncwarp();
    if (part == 0) push_forsaken(to, call, lane);
    arrive(*g);
  }
  /// All lanes of one warp: the parts that nobody claims in time, 32 looked at together.
  __device__ __forceinline__ void push_forsaken(uint64_t to, uint32_t call, uint32_t lane) {
    const auto parts = static_cast<uint32_t>(g->push_parts);
    const uint64_t end = ptx::global_ns() + kStartGraceNs;
    for (uint32_t first = 0; first < parts; first += 32) {
      const uint32_t mine = first + lane;
      const auto forsaken = [&] {
        return __ballot_sync(~0u, mine < parts && ptx::load_acquire_gpu(g->claims + mine) != call);
      };
      uint32_t left = forsaken();
      while (left != 0 && __any_sync(~0u, ptx::global_ns() < end)) {
        __nanosleep(kLookNs);
        left = forsaken();
      }
      for (; left != 0; left &= left - 1)
        push_in_place_of(first + static_cast<uint32_t>(__ffs(left)) - 1, to, call, lane);
    }
  }
  __device__ __forceinline__ void push_in_place_of(uint32_t part, uint64_t to, uint32_t call, uint32_t lane) {
    uint32_t before = 0;
    if (lane == 0) before = atomicExch(g->claims + part, call);
    if (__shfl_sync(~0u, before, 0) == call) return;
    for (uint32_t warp = 0; warp < kWarps; ++warp) push_part(to, 0, g->row_units, part, warp, lane);
    __syncwarp();
    if (lane == 0) tell(0, part);
    __syncwarp();
  }

  template <class Config>
  __device__ __forceinline__ void push_drawn(const Cta<Config>& cta) {
    ptx::wait_for_previous_grid();
    const uint32_t warp = threadIdx.x / 32 - 1, lane = threadIdx.x % 32;
    const uint64_t to = my_rows();
    const int32_t width = g->slab_blocks * (kTileK * 2 / 16);
    if (warp == 0 && lane == 0) know(cta, 0, draw());
    __syncwarp();
    uint32_t ordinal = 0;
    for (;; ++ordinal) {
      const uint32_t number = await_part(cta, ordinal);
      uint32_t next = 0;
      if (number >= static_cast<uint32_t>(g->slabs * g->push_parts)) break;
      if (warp == 0 && lane == 0) next = draw();
      const uint32_t slab = number / static_cast<uint32_t>(g->push_parts), part = number - slab * g->push_parts;
      const int32_t first = static_cast<int32_t>(slab) * width, left = g->row_units - first;
      push_part(to, first, left < width ? left : width, part, warp, lane);
      if (warp == 0 && lane == 0) know(cta, ordinal + 1, next);
      __syncwarp();  // all lanes arrive at the barrier at once
      const uint32_t barrier = 1 + ordinal % kBarriers;
      if (warp != ordinal % kWarps) {
        ptx::named_barrier_arrive<kWarps * 32>(barrier);
        continue;
      }
      ptx::named_barrier_sync<kWarps * 32>(barrier);
      if (lane == 0) tell(slab, part);
      __syncwarp();
    }
    // The last to tell, if there was anything, has waited for the others.
    if (warp == (ordinal + kWarps - 1) % kWarps) arrive(*g);
  }
  __device__ __forceinline__ uint32_t draw() const {
    const auto parts = static_cast<uint32_t>(g->slabs * g->push_parts);
    uint32_t number = 0;
    draw_number(true, reinterpret_cast<uint32_t*>(counter_of(*g, Count::parts)), parts + gridDim.x, &number);
    return number;
  }
  /// Told by one thread. No warp is more than kWarps parts ahead of another one.
  template <class Config>
  __device__ __forceinline__ void know(const Cta<Config>& cta, uint32_t ordinal, uint32_t number) const {
    static_assert(kPushSlots > kWarps + 1);
    ptx::store_word(cta.pushed(ordinal % kPushSlots), number);
    ptx::store_release_cta(cta.known(), ordinal + 1);
  }
  template <class Config>
  __device__ __forceinline__ uint32_t await_part(const Cta<Config>& cta, uint32_t ordinal) const {
    uint32_t number = 0;
    if (threadIdx.x % 32 == 0) {
      while (ptx::load_acquire_cta(cta.known()) <= ordinal) __nanosleep(kLookNs);
      number = ptx::load_word(cta.pushed(ordinal % kPushSlots));
    }
    return __shfl_sync(~0u, number, 0);
  }

  /// Units of 512 bytes of a row, by turns over the warps of all parts; `first` and `width` in pieces of 16 bytes.
  __device__ __forceinline__ void push_part(uint64_t to, int32_t first, int32_t width, uint32_t part, uint32_t warp,
                                            uint32_t lane) {
    const TeamPod& team = g->channel.team;
    const int32_t segments = (width + 31) / 32, units = g->shard_rows * segments;
    const auto step = static_cast<int32_t>(static_cast<uint32_t>(g->push_parts) * kWarps);
    for (auto u = static_cast<int32_t>(part * kWarps + warp); u < units; u += kLoads * step) {
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

  __device__ __forceinline__ void tell(uint32_t slab, uint32_t part) {
    const TeamPod& team = g->channel.team;
    const auto parts = static_cast<uint32_t>(g->push_parts);
    const uint32_t share = (part + 1) * kShares / parts - part * kShares / parts;
    // NOTE: cumulative over the three warps, whose barrier is behind; a fence in every writer would stall every warp.
    ptx::fence_proxy_async();
    ptx::fence_sys();
    for (int hop = 1; hop < team.size + kLastHop; ++hop)
      device::signal_add_relaxed(g->channel, (team.rank - hop + team.size) % team.size, g->ready_id + slab, share);
  }
};

}  // namespace overlace::ops::fused
