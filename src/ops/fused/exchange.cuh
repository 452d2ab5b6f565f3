// What calls of all fused operators share: an inbox of two buffers that peers fill, and how a call ends on the device.
// Nothing is reset by the host, no rank waits for all others.
#pragma once

#include "overlace/device/counter.cuh"
#include "overlace/device/inbox.cuh"
#include "src/gemm_core/tickets.cuh"
#include "src/ops/fused/params.cuh"

namespace overlace::ops::fused {

__device__ __forceinline__ uint64_t* counter_of(const ExchangeParams& x, Count which) {
  return device::counter_word(x.counters, static_cast<uint32_t>(which));
}
__device__ __forceinline__ Drawn tickets_of(const ExchangeParams& x, int32_t items) {
  return {reinterpret_cast<uint32_t*>(counter_of(x, Count::items)), x.items, items};
}

__device__ __forceinline__ DrawnPlaces places_of(const ExchangeParams& x) {
  return {reinterpret_cast<uint32_t*>(counter_of(x, Count::items))};
}

/// The maps of this call's buffer are [this].
__device__ __forceinline__ uint32_t buffer_of_call(const ExchangeParams& x) {
  return static_cast<uint32_t>((device::inbox_epoch(x.inbox) - 1) % 2);
}

/// All lanes of the warp of the last CTA to arrive.
__device__ __forceinline__ void open_next_call(const ExchangeParams& x, uint32_t lane) {
  __syncwarp();
  if (lane == 0) *counter_of(x, Count::arrivals) = 0;
  if (lane == 0) device::inbox_advance(x.inbox);
  __syncwarp();
}

/// All lanes of the warp of the last CTA to arrive: gives credit for this call's buffer, opens the next epoch, and
/// waits until its buffer is free everywhere: peers gave that credit when they were done with the call before this one,
/// which all have ended whose data this call has waited for. `code`: how the call went up to here.
__device__ __forceinline__ void end_call(const ExchangeParams& x, uint32_t lane, Errc code) {
  const TeamPod& team = x.channel.team;
  const auto rank = static_cast<uint32_t>(team.rank), size = static_cast<uint32_t>(team.size);
  const bool has_peer = lane < size && lane != rank;
  const int peer = static_cast<int>(lane);
  if (has_peer) {
    device::inbox_sent(x.channel, x.inbox, peer);
    device::inbox_release(x.channel, x.inbox, peer, 0);
  }
  open_next_call(x, lane);
  if (has_peer && code == Errc::ok) code = device::inbox_wait_credit(x.channel, x.inbox, peer);
}

/// Whether a call uses signals and credits of peers.
__device__ __forceinline__ bool meets_peers(const ExchangeParams&) { return true; }
__device__ __forceinline__ bool meets_peers(const ScatterParams& s) { return s.done.words == nullptr; }

/// All lanes of one warp, whose part of the call is over: its loads from the inbox, or what it sends. The operator's
/// `consume_signals` moves on the tickets of the signals that the call has waited for.
template <class Params>
__device__ __forceinline__ void arrive(const Params& p) {
  const uint32_t lane = threadIdx.x % 32;
  uint32_t is_last = 0;
  if (lane == 0)
    is_last = device::counter_arrive(p.counters, static_cast<uint32_t>(Count::arrivals)) == p.arrivals_per_call;
  if (__shfl_sync(~0u, is_last, 0) == 0) return;
  if (!meets_peers(p)) return open_next_call(p, lane);
  const Errc code = consume_signals(p, lane);
  if constexpr (Params::kHasCredit) {
    end_call(p, lane, code);
  } else {
    open_next_call(p, lane);
  }
}

// ---- AllGather in front of the mainloop ----

/// All lanes of a warp.
__device__ __forceinline__ Errc consume_signals(const GatherParams& g, uint32_t lane) {
  const TeamPod& team = g.channel.team;
  const auto rank = static_cast<uint32_t>(team.rank), size = static_cast<uint32_t>(team.size);
  Errc code = Errc::ok;
  if (g.totals != nullptr && lane == 0) {
    // NOTE: the copy stream's last flag goes to my own slot: behind it no flag copy reads `totals` any more.
    code =
        device::wait_ge(g.channel, team.rank, g.ready_id, device::ticket(g.channel, team.rank, g.ready_id) + kShares);
    device::consume(g.channel, team.rank, g.ready_id, kShares);
  }
  __syncwarp();
  for (uint32_t i = lane; i < static_cast<uint32_t>(count_pieces(g)) * size; i += 32) {
    const uint32_t sender = i % size, piece = i / size;
    if (sender != rank) device::consume(g.channel, static_cast<int>(sender), g.ready_id + piece, kShares);
    if (g.totals != nullptr) g.totals[i] += kShares;
  }
  return code;
}

// ---- ReduceScatter and AllReduce around the mainloop ----

inline constexpr uint32_t kBegunBarrier = 7, kBegunThreads = 96;  // load warp and store warps

/// The id of one of the words that a group of tiles has.
__device__ __forceinline__ uint32_t id_of(const ScatterParams& s, Word word, int32_t group) {
  return (word == Word::arrived ? s.arrive_id : s.ready_id) + static_cast<uint32_t>(group);
}

/// What is added for a group of an owner's tiles: by each sender, and by the owner once they are summed.
__device__ __forceinline__ uint32_t adds_of_group(const ScatterParams& s, int32_t owner, int32_t group) {
  return static_cast<uint32_t>(tiles_of_group(s.groups, s.row_tiles[owner], group) * s.adds_per_tile);
}

/// All lanes of a warp.
__device__ __forceinline__ Errc consume_signals(const ScatterParams& s, uint32_t lane) {
  const TeamPod& team = s.channel.team;
  const int32_t groups = count_groups(s.groups, s.row_tiles[team.rank]);
  for (auto i = static_cast<int32_t>(lane); i < groups * team.size; i += 32) {
    const int32_t group = i / team.size;
    device::consume(s.channel, i % team.size, s.arrive_id + static_cast<uint32_t>(group),
                    adds_of_group(s, team.rank, group));
  }
  for (int32_t owner = 0; s.sums_travel && owner < team.size; ++owner) {
    const int32_t theirs = owner == team.rank ? 0 : count_groups(s.groups, s.row_tiles[owner]);
    for (auto group = static_cast<int32_t>(lane); group < theirs; group += 32)
      device::consume(s.channel, owner, s.ready_id + static_cast<uint32_t>(group), adds_of_group(s, owner, group));
  }
  return Errc::ok;
}

}  // namespace overlace::ops::fused
