// ReduceScatter and AllReduce around the mainloop: tiles of rows that a peer owns are stored into its inbox as they are
// done, own tiles into the result; behind products the owner adds up what has come. AllReduce: it stores the sums into
// the inboxes of all peers as well, who copy them into their results.
#pragma once

#include "src/ops/gemm_core/exchange.cuh"
#include "src/spec/fused_pod.h"
#include "src/spec/work_order_pod.h"

namespace overlace::ops::gemm_core {

inline constexpr uint32_t kBegunBarrier = 7, kBegunThreads = 96;  // load warp and store warps

/// The inbox: per sender a slot of `slot_rows` rows of N, that of rank + 1 first; AllReduce: behind them (M, N), for
/// sums of other owners. Tiles of an owner's rows are told in groups: slot (arrive_id + group, sender) grows by one per
/// tile, CTA and consumer warpgroup; the owner tells itself as well. Sums are told to all peers in the same groups, by
/// slot (ready_id + group, owner). Those who arrive: per CTA the load warp.
struct ScatterParams : ExchangeParams {
  CUtensorMap to[2][kPodPeers];  // (rows of that peer, N): my slot in its buffers
  CUtensorMap from[2];           // ((ranks - 1) slot_rows, N): my buffers
  // AllReduce:
  CUtensorMap sums_to[2][kPodPeers];  // (my rows, N): my sums in that peer's buffers
  CUtensorMap sums_from[2];           // (M, N): sums of all owners in mine
  CUtensorMap result[kPodPeers];      // (rows of that peer, N) of the result
  uint32_t arrive_id, ready_id;
  WorkOrder work;    // the list of items
  bool sums_travel;  // AllReduce
  TileGroups groups;
  int32_t adds_per_tile;         // CTAs of the cluster times consumer warpgroups
  int32_t row_tiles[kPodPeers];  // of each owner, in tiles of the cluster
  int32_t slot_rows;
  int32_t n;
  float alpha;       // of the sum over ranks
  const void* bias;  // (N) of the output's type, or null
};
struct ScatterGemmParams {
  GemmParams gemm;  // c: my rows of the result
  ScatterParams scatter;
};

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

}  // namespace overlace::ops::gemm_core
