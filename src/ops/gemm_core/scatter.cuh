// ReduceScatter behind the mainloop: tiles of rows that a peer owns are stored into its inbox as they are done; the
// owner computes its own rows last and adds what has come.
#pragma once

#include "src/ops/gemm_core/exchange.cuh"
#include "src/spec/fused_pod.h"

namespace overlace::ops::gemm_core {

inline constexpr uint32_t kBegunBarrier = 7, kBegunThreads = 96;  // load warp and store warps

/// The inbox: per sender a slot of `slot_rows` rows of N, that of rank + 1 first. Tiles of an owner's rows are told in
/// groups. tma_slot: slot (arrive_id + group, sender) grows by one per tile, CTA and consumer warpgroup. ce: tiles stay
/// here and count in `triggers` (peer kMaxGroups + group); a copy engine waits for those, copies, and adds one to the
/// slot. Those who arrive: per CTA the load warp.
struct ScatterParams : ExchangeParams {
  CUtensorMap to[2][kPodPeers];  // (rows of that peer, N): my slot in its buffers; ce: my memory
  CUtensorMap from[2];           // ((ranks - 1) slot_rows, N): my buffers
  uint32_t arrive_id;
  TileGroups groups;
  int32_t adds_per_tile;         // CTAs of the cluster times consumer warpgroups
  int32_t row_tiles[kPodPeers];  // of each owner, in tiles of the cluster
  int32_t first_own;             // index of the first tile of my rows, which are the last
  int32_t slot_rows;
  int32_t n;
  bool rounds_own;       // level 2: my own sums are rounded as those of the others are
  float alpha;           // of the sum over ranks
  const void* bias;      // (N) of the output's type, or null
  CountersPod triggers;  // ce; 0 between calls
  uint64_t* totals;      // ce: (kMaxGroups, ranks), what this call's copies of flags post; else null
};
struct ScatterGemmParams {
  GemmParams gemm;  // c: my rows of the result
  ScatterParams scatter;
};

/// What each sender adds for a group of mine.
__device__ __forceinline__ uint32_t adds_of_group(const ScatterParams& s, int32_t group) {
  if (s.totals != nullptr) return 1;
  return static_cast<uint32_t>(tiles_of_group(s.groups, s.row_tiles[s.channel.team.rank], group) * s.adds_per_tile);
}

/// All lanes of a warp.
__device__ __forceinline__ Errc consume_signals(const ScatterParams& s, uint32_t lane) {
  const TeamPod& team = s.channel.team;
  Errc code = Errc::ok;
  if (s.totals != nullptr && lane == 0) {
    // NOTE: the copy stream's last flag goes to my own slot: behind it nobody looks at `triggers` and `totals`.
    code = device::wait_ge(s.channel, team.rank, s.arrive_id, device::ticket(s.channel, team.rank, s.arrive_id) + 1);
    device::consume(s.channel, team.rank, s.arrive_id, 1);
    s.totals[team.rank] += 1;
  }
  __syncwarp();
  for (auto i = static_cast<int32_t>(lane); i < kMaxGroups * team.size; i += 32) {
    const int32_t peer = i % team.size, group = i / team.size;
    if (peer == team.rank) continue;
    if (group < count_groups(s.groups, s.row_tiles[team.rank]))
      device::consume(s.channel, peer, s.arrive_id + static_cast<uint32_t>(group), adds_of_group(s, group));
    if (s.totals != nullptr && group < count_groups(s.groups, s.row_tiles[peer])) {
      s.totals[i] += 1;
      *device::counter_word(s.triggers, static_cast<uint32_t>(peer * kMaxGroups + group)) = 0;
    }
  }
  return code;
}

}  // namespace overlace::ops::gemm_core
