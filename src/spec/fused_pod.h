// What the schedules of fused kernels and the kernels agree on: how pieces are counted, and which tiles are told at
// once.
#pragma once

#include <cstdint>

#include "src/base/ceil_div_pod.h"
#include "src/spec/tile_order_pod.h"

namespace overlace {

/// AllGather and GEMM: what a call adds to each word of `arrived`. The CTAs that push a slab share it, a copy engine
/// posts it. So ranks whose grids differ (N_local does) need not know each other's.
inline constexpr uint32_t kShares = 4096;
inline constexpr int32_t kMaxPieces = 64;  // of a shard
inline constexpr int64_t kTileDepth = 64;  // columns of A that a stage holds: slabs of K are multiples

/// GEMM and ReduceScatter: groups of tiles of one owner, at most.
inline constexpr int32_t kMaxGroups = 64;
/// Tiles of a cluster of the kernels that store into slots (which columns: slot_tile_cols of src/spec/costs.h); row
/// tiles of a block of the order.
inline constexpr int64_t kSlotTileRows = 256, kSlotTileCols = 128, kWideSlotTileCols = 256;
inline constexpr int32_t kTileSwizzle = 8;

/// Groups of tiles of one owner's rows that are told to it together: rectangles. Sizes in tiles of the cluster;
/// `groups_n` of them lie side by side along N.
struct TileGroups {
  int32_t rows, cols, groups_n, tiles_n;
};

/// At most `most` groups per owner, as fine as that allows: along N first, since tiles sweep N. `longest`: row tiles of
/// the owner that has most. All ranks make them alike: nothing depends on the rank.
constexpr TileGroups make_groups(int32_t longest, int32_t tiles_n, int32_t swizzle, int32_t most) {
  TileGroups g{};
  g.tiles_n = tiles_n;
  g.rows = swizzle * base::ceil_div(base::ceil_div(longest, swizzle), most);
  g.cols = tiles_n > 0 ? base::ceil_div(tiles_n, most / base::ceil_div(longest, g.rows)) : 1;
  g.groups_n = base::ceil_div(tiles_n, g.cols);
  return g;
}
/// Row tiles of the shard that has most.
constexpr int32_t longest_row_tiles(const TileOrder& o) {
  int32_t longest = 1;
  for (int s = 0; s < o.size; ++s) {
    const int32_t rows = o.first_tile[s + 1] - o.first_tile[s];
    longest = rows > longest ? rows : longest;
  }
  return longest;
}

constexpr TileGroups make_groups(const TileOrder& o, int32_t most) {
  return make_groups(longest_row_tiles(o), o.tiles_n, o.swizzle, most);
}

/// GEMM and AllReduce: groups in `bands` bands of row tiles, each as high as its band; at most, and at most kMaxBands.
constexpr TileGroups make_band_groups(int32_t longest, int32_t tiles_n, int32_t bands) {
  TileGroups g{};
  g.tiles_n = tiles_n;
  g.rows = base::ceil_div(longest, bands < kMaxBands ? bands : kMaxBands);
  g.cols = tiles_n > 0 ? base::ceil_div(tiles_n, kMaxGroups / base::ceil_div(longest, g.rows)) : 1;
  g.groups_n = base::ceil_div(tiles_n, g.cols);
  return g;
}

/// GEMM whose tiles are counted where they are computed, for copies: a group is a chunk of whole rows of tiles, so that
/// one copy takes it. At most `chunks` for each owner.
constexpr TileGroups make_chunk_groups(int32_t longest, int32_t tiles_n, int32_t chunks) {
  return {base::ceil_div(longest, chunks < kMaxPieces ? chunks : kMaxPieces), tiles_n > 0 ? tiles_n : 1, 1, tiles_n};
}
/// The counter of chunk `chunk` of the rows that rank + `distance` owns, of `size` - 1 for each chunk.
constexpr int32_t counter_of_chunk(int32_t chunk, int32_t distance, int32_t size) {
  return chunk * (size - 1) + distance - 1;
}

constexpr int32_t group_of(const TileGroups& g, const TileOrder& o, const TileCoord& at) {
  return (at.m - o.first_tile[at.shard]) / g.rows * g.groups_n + at.n / g.cols;
}
/// Groups of an owner of `own_rows` rows of tiles, and the tiles of one of them.
constexpr int32_t count_groups(const TileGroups& g, int32_t own_rows) {
  return base::ceil_div(own_rows, g.rows) * g.groups_n;
}
constexpr int32_t tiles_of_group(const TileGroups& g, int32_t own_rows, int32_t group) {
  const int32_t tall = own_rows - group / g.groups_n * g.rows, wide = g.tiles_n - group % g.groups_n * g.cols;
  return (tall < g.rows ? tall : g.rows) * (wide < g.cols ? wide : g.cols);
}

/// Few tokens, of any operator: at most so many, the one limit of `one_shot` on GPUs. Sums travel in slots of (tokens,
/// columns) that hold whole tiles of the kernel.
inline constexpr int64_t kOneShotTokens = 256;
/// A tile has so many rows of the weights, and of these numbers of tokens the least that holds all. Up to
/// kOneShotSplitTokens two CTAs may share a tile along K: beside the sums of half a wider one no ring has room.
inline constexpr int64_t kOneShotRows = 64, kOneShotSplitTokens = 128;
inline constexpr int64_t kOneShotTiles[] = {16, 64, 128, kOneShotTokens};
constexpr int64_t one_shot_tile_tokens(int64_t m) {
  for (const int64_t tokens : kOneShotTiles)
    if (m <= tokens) return tokens;
  return kOneShotTokens;
}
constexpr int64_t one_shot_tokens(int64_t m) { return (m + 7) / 8 * 8; }
constexpr int64_t one_shot_columns(int64_t n) { return (n + 127) / 128 * 128; }

}  // namespace overlace
