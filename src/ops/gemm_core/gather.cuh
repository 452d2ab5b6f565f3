// AllGather in front of the mainloop: rows of A that peers own arrive in an inbox while tiles are computed.
#pragma once

#include "src/ops/gemm_core/exchange.cuh"
#include "src/spec/fused_pod.h"

namespace overlace::ops::gemm_core {

/// Rows of this rank that go into the inbox of every peer, (M, K), in slabs of K. Slab i of sender s is there when slot
/// (ready_id + i, s) is kShares above its ticket. Those who arrive: per CTA the load warp, and the last pusher if it
/// pushes.
struct ShardParams : ExchangeParams {
  static constexpr bool kGathersOwn = false;  // true: own rows go into the own inbox, too
  static constexpr bool kDrawsParts = true;   // false: a part for each of the first places in the grid
  CUtensorMap gathered[2];                    // (M, K), the buffers
  uint32_t ready_id;
  int32_t slabs, slab_blocks;
  const uint4* shard;  // (rows of this rank, row_units), 16 bytes each
  int64_t shard_pitch;
  int32_t shard_rows, first_row, row_units;  // first_row: in the inbox
  int32_t push_parts;                        // of a slab; 0: a copy engine sends
  const void* bias;                          // (N) of the output's type, or null
  int32_t n;
};

/// A shard arrives in pieces, in ascending order: `chunks` of rows with slabs == 1, or `slabs` of K with chunks == 1.
/// Told as slabs are.
struct GatherParams : ShardParams {
  uint64_t* totals;          // (pieces, ranks): what this call's copies of flags post; null where CTAs push
  CUtensorMap c[kPodPeers];  // rows of C by shard, so that a tile does not write those of the next
  int32_t chunks, chunk_rows;
  bool waits;     // false: nobody waits for peers' rows, to measure what the traffic alone costs; C is wrong
  bool is_gated;  // C has N / 2 columns: swiglu of column 2i and the next
};
struct GatherGemmParams {
  GemmParams gemm;  // a: this rank's rows, (M of the shard, K); c is not used
  GatherParams gather;
};

constexpr int32_t count_pieces(const GatherParams& g) { return g.chunks * g.slabs; }

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

}  // namespace overlace::ops::gemm_core
