// What kernels of the mainloop get by value.
#pragma once

#include <cuda.h>
#include <vector_types.h>

#include <cstdint>

#include "src/spec/tile_order_pod.h"

namespace overlace::gemm_core {

/// Rows of both operands that belong together, where K is grouped. The first is a multiple of kTileK.
struct alignas(8) RowGroup {
  int32_t first, rows;
};

struct GemmParams {
  CUtensorMap a;                // (M, K); K grouped: (K, M)
  CUtensorMap b;                // (N, K) or (K, N)
  CUtensorMap c;                // (M, N)
  TileOrder order;              // of the clusters' tiles
  int32_t num_tiles, k_blocks;  // of each CTA's part of K
  const RowGroup* groups;       // K grouped: of each shard, in device memory
  uint32_t stage_bytes;         // that loads bring, with swapped operands; else a stage is full
  uint32_t* error;              // device or pinned memory: not 0 once a wait has passed its end
  uint64_t timeout_ns;
};

/// Two products in one list of items: shards from `first_shard` on are matrices of the second stack.
struct ChainedParams : GemmParams {
  CUtensorMap second_a, second_b, second_c;
  int32_t second_k_blocks, first_shard;
};

// ---- which CTA takes which item of work ----

/// Cluster c takes items c, c + clusters, and so on. Items wait for nobody.
struct Dealt {
  static constexpr bool kDraws = false, kDrawsPlaces = false;
};

/// Items are dealt, but a cluster draws its place in the grid when it starts, so that places are taken in ascending
/// order. Where each item waits for peers' parts of the same item alone, and sends its own before, any clusters that
/// are resident make progress: of all ranks' places that are taken, the lowest ones are taken on all ranks, and come to
/// their end; then others start. `counter` is 0 between calls.
struct DrawnPlaces {
  static constexpr bool kDraws = false, kDrawsPlaces = true;
  uint32_t* counter;
};

/// A cluster takes the item whose number it draws. Each item waits for earlier ones alone, of whatever rank's list, so
/// any clusters that are resident make progress. Each draws until it gets a number past the list: items + clusters
/// numbers in a call, behind which the counter is 0 again.
struct Drawn {
  static constexpr bool kDraws = true, kDrawsPlaces = false;
  uint32_t* counter;
  const uint4* list;  // Work, then TileCoord
  int32_t items;
};

}  // namespace overlace::gemm_core
