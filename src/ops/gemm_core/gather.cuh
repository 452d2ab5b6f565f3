// AllGather in front of the mainloop: rows of A that peers own arrive in an inbox while tiles are computed.
#pragma once

#include "src/device/sync/counter.cuh"
#include "src/device/sync/inbox.cuh"
#include "src/ops/gemm_core/params.cuh"

namespace overlace::ops::gemm_core {

/// What a call adds to each ready slot, whoever sends: the CTAs that push share it, a copy engine posts it. So ranks
/// whose grids differ (N_local does) need not know each other's.
inline constexpr uint32_t kShares = 4096;
inline constexpr int32_t kMaxPieces = 64;

/// A shard arrives in pieces, in ascending order: `chunks` of rows with slabs == 1, or `slabs` of K with chunks == 1.
/// Piece i of sender s is there when slot (ready_id + i, s) is kShares above its ticket.
struct GatherParams {
  ChannelPod channel;
  InboxPod inbox;            // two buffers (M, K)
  CountersPod arrivals;      // word 0: CTAs whose loads are over, and CTAs whose pushes are over; 0 between calls
  uint64_t* totals;          // (pieces, ranks): what this call's copies of flags post; null where CTAs push
  CUtensorMap gathered[2];   // (M, K), the buffers
  CUtensorMap c[kPodPeers];  // rows of C by shard, so that a tile does not write those of the next
  uint32_t ready_id, arrivals_per_call;
  int32_t chunks, chunk_rows, slabs, slab_blocks;
  bool waits;          // false: nobody waits for peers' rows, to measure what the traffic alone costs; C is wrong
  const uint4* shard;  // (rows of this rank, row_units), 16 bytes each
  int64_t shard_pitch;
  int32_t shard_rows, row_units;
  int32_t push_ctas;  // the first of the grid; 0: a copy engine sends
};
struct GatherGemmParams {
  GemmParams gemm;  // a: this rank's rows, (M of the shard, K); c is not used
  GatherParams gather;
};

constexpr int32_t count_pieces(const GatherParams& g) { return g.chunks * g.slabs; }

/// All lanes of the warp of the last CTA to arrive: moves tickets on, gives credit for this call's buffer, opens the
/// next epoch, and waits until its buffer is free everywhere: peers gave that credit when they were done with the call
/// before this one, which all have ended whose data this call has waited for.
__device__ __forceinline__ void end_call(const GatherParams& g, uint32_t lane) {
  const TeamPod& team = g.channel.team;
  const auto rank = static_cast<uint32_t>(team.rank), size = static_cast<uint32_t>(team.size);
  const bool has_peer = lane < size && lane != rank;
  const int peer = static_cast<int>(lane);
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
  if (has_peer) {
    device::inbox_sent(g.channel, g.inbox, peer);
    device::inbox_release(g.channel, g.inbox, peer, 0);
  }
  __syncwarp();
  if (lane == 0) *device::counter_word(g.arrivals, 0) = 0;
  if (lane == 0) device::inbox_advance(g.inbox);
  __syncwarp();
  if (has_peer && code == Errc::ok) code = device::inbox_wait_credit(g.channel, g.inbox, peer);
}

/// All lanes of one warp. This CTA's loads, or its pushes, are over.
__device__ __forceinline__ void arrive(const GatherParams& g) {
  const uint32_t lane = threadIdx.x % 32;
  uint32_t is_last = 0;
  if (lane == 0) is_last = device::counter_arrive(g.arrivals, 0) == g.arrivals_per_call;
  if (__shfl_sync(~0u, is_last, 0) != 0) end_call(g, lane);
}

}  // namespace overlace::ops::gemm_core
