// ReduceScatter behind the mainloop: tiles of rows that a peer owns are stored into its inbox as they are done; the
// owner computes its own rows last and adds what has come.
#pragma once

#include "src/ops/gemm_core/exchange.cuh"
#include "src/ops/gemm_core/tile_groups.h"

namespace overlace::ops::gemm_core {

inline constexpr int32_t kMaxGroups = 64;

/// The inbox: per sender a slot of `slot_rows` rows of N, that of rank + 1 first. Tiles of an owner's rows are told in
/// groups: slot (arrive_id + group, sender) grows by one per tile and consumer
/// warpgroup. Those who arrive: per CTA the load warp and the store warps.
struct ScatterParams : ExchangeParams {
  CUtensorMap to[2][kPodPeers];  // (rows of that peer, N): my slot in its buffers
  CUtensorMap from[2];           // ((ranks - 1) slot_rows, N): my buffers
  uint32_t arrive_id;
  TileGroups groups;
  int32_t adds_per_tile;  // CTAs of the cluster times consumer warpgroups
  int32_t own_rows;       // my rows, in tiles of the cluster
  int32_t first_own;      // index of the first tile of my rows, which are the last
  int32_t slot_rows;
  int32_t n;
  bool rounds_own;   // level 2: my own sums are rounded as those of the others are
  float alpha;       // of the sum over ranks
  const void* bias;  // (N) of the output's type, or null
};
struct ScatterGemmParams {
  GemmParams gemm;  // c: my rows of the result
  ScatterParams scatter;
};

/// What each sender adds for a group of mine.
__device__ __forceinline__ uint32_t adds_of_group(const ScatterParams& s, int32_t group) {
  return static_cast<uint32_t>(tiles_of_group(s.groups, s.own_rows, group) * s.adds_per_tile);
}

/// All lanes of a warp.
__device__ __forceinline__ Errc consume_signals(const ScatterParams& s, uint32_t lane) {
  const TeamPod& team = s.channel.team;
  for (int32_t i = static_cast<int32_t>(lane); i < count_groups(s.groups, s.own_rows) * team.size; i += 32) {
    const int32_t sender = i % team.size, group = i / team.size;
    if (sender != team.rank)
      device::consume(s.channel, sender, s.arrive_id + static_cast<uint32_t>(group), adds_of_group(s, group));
  }
  return Errc::ok;
}

}  // namespace overlace::ops::gemm_core
