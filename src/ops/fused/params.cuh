// What fused kernels get by value.
#pragma once

#include <cuda.h>
#include <vector_types.h>

#include <cstdint>

#include "overlace/handle_pod.h"
#include "src/gemm_core/params.cuh"
#include "src/spec/fused_pod.h"
#include "src/spec/item_effects_pod.h"
#include "src/spec/work_order_pod.h"

namespace overlace::ops::fused {

using namespace gemm_core;

/// Words of a kernel's counters: warps of this call that are done, numbers drawn of items, or of places where items are
/// dealt, and of parts that are pushed.
enum class Count : uint32_t { arrivals, items, parts };
inline constexpr uint32_t kCounts = 3;

struct ExchangeParams {
  static constexpr bool kHasCredit = true;
  ChannelPod channel;
  InboxPod inbox;        // two buffers
  CountersPod counters;  // words by Count, all 0 between calls
  uint32_t arrivals_per_call;
  const uint4* items;  // the list, in device memory
};

// ---- AllGather in front of the mainloop ----
// Rows of A that peers own arrive in an inbox while tiles are computed.

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

// ---- ReduceScatter and AllReduce around the mainloop ----
// Tiles of rows that a peer owns are stored into its inbox as they are done, own tiles into the result; behind products
// the owner adds up what has come. AllReduce: it stores the sums into the inboxes of all peers as well, who copy them
// into their results.

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
  // The products alone, all of them into local memory (`to`, and `c` of the GEMM): tiles of other ranks' rows are
  // counted there, chunk by chunk (counter_of_chunk), by as many adds; no `words`: not so.
  CountersPod done;
};
struct ScatterGemmParams {
  GemmParams gemm;  // c: my rows of the result
  ScatterParams scatter;
};

}  // namespace overlace::ops::fused
