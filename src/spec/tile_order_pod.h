// In which order a persistent grid visits the tiles of C: one pure function for devices, CPU ranks, planner, simulator.
#pragma once

#include <cstdint>
#include <type_traits>

#include "src/base/ceil_div_pod.h"

namespace overlace {

inline constexpr int kOrderShards = 8;
inline constexpr int32_t kWhole = 1 << 30;
inline constexpr int32_t kMaxBands = 16;  // of a kernel that sums between GEMMs

/// linear: as if there were one shard. rotated: shards r, r+1, ... woven: tiles of the other
/// shards, r+1 first, with those of the local shard spread evenly among them, band by band. own_last: tiles of the
/// other shards, r+1 first, band by band, then those of the local shard. grouped: `groups` times one chunk per owner,
/// the local chunk last in its group; owners take turns, chunk c belongs to c % size.
enum class TileOrderKind : int32_t { linear, rotated, woven, own_last, grouped };
/// along_n: blocks of `swizzle` row tiles, each swept along N. along_m: blocks of `swizzle` column tiles, swept along
/// M.
enum class TileSweep : int32_t { along_n, along_m };

/// A shard's rows [row_begin[s], row_begin[s+1]) are tiled by themselves: row tiles first_tile[s] up to
/// first_tile[s+1].
struct TileOrder {
  TileOrderKind kind = TileOrderKind::linear;
  TileSweep sweep = TileSweep::along_n;
  int32_t rank = 0, size = 1;
  int32_t tile_rows = 1, tiles_n = 0, swizzle = 1, groups = 1;
  int32_t band = kWhole;  // woven, own_last: row tiles of each shard that follow each other
  int32_t first_tile[kOrderShards + 1] = {};
  int32_t row_begin[kOrderShards + 1] = {};
};
static_assert(std::is_trivially_copyable_v<TileOrder>);

/// `m` counts row tiles over all shards. `shard`: whose rows they are; with `grouped` the owner of the chunk.
struct TileCoord {
  int32_t m = 0, n = 0, shard = 0;
};

constexpr int32_t count_row_tiles(const TileOrder& o) { return o.first_tile[o.size]; }
constexpr int32_t count_tiles(const TileOrder& o) { return count_row_tiles(o) * o.tiles_n; }

/// `row_offsets`: size + 1 values, monotone, the first 0. grouped: the rows are one block, whatever the offsets.
constexpr TileOrder make_tile_order(TileOrderKind kind, int32_t rank, int32_t size, const int64_t* row_offsets,
                                    int32_t tile_rows, int32_t tiles_n) {
  TileOrder o;
  o.kind = kind;
  o.rank = rank;
  o.size = size;
  o.tile_rows = tile_rows;
  o.tiles_n = tiles_n;
  const bool whole = kind == TileOrderKind::grouped;
  const auto tiles_of = [tile_rows](int64_t rows) { return static_cast<int32_t>(base::ceil_div(rows, tile_rows)); };
  for (int s = 0; s < size; ++s) {
    const int64_t rows = row_offsets[s + 1] - row_offsets[s];
    o.first_tile[s + 1] = whole ? tiles_of(row_offsets[size]) : o.first_tile[s] + tiles_of(rows);
    o.row_begin[s + 1] = static_cast<int32_t>(row_offsets[whole ? size : s + 1]);
  }
  return o;
}

namespace tile_order_detail {

/// Tile `index` of the rectangle of row tiles [first, first + rows) and all column tiles.
constexpr TileCoord in_rectangle(const TileOrder& o, int32_t first, int32_t rows, int32_t shard, int32_t index) {
  const bool along_n = o.sweep == TileSweep::along_n;
  const int32_t across = along_n ? rows : o.tiles_n, along = along_n ? o.tiles_n : rows;
  const int32_t block = index / (o.swizzle * along), in_block = index - block * o.swizzle * along;
  const int32_t left = across - block * o.swizzle, width = left < o.swizzle ? left : o.swizzle;
  const int32_t step = in_block / width, side = block * o.swizzle + in_block - step * width;
  return along_n ? TileCoord{first + side, step, shard} : TileCoord{first + step, side, shard};
}

/// Shards rank, rank + 1, ... (mod size), whole.
constexpr TileCoord shard_by_shard(const TileOrder& o, int32_t index) {
  for (int32_t step = 0;; ++step) {
    const int32_t s = (o.rank + step) % o.size, rows = o.first_tile[s + 1] - o.first_tile[s];
    if (index < rows * o.tiles_n) return in_rectangle(o, o.first_tile[s], rows, s, index);
    index -= rows * o.tiles_n;
  }
}

constexpr TileCoord grouped(const TileOrder& o, int32_t index) {
  const int64_t tiles = count_row_tiles(o), chunks = int64_t{o.groups} * o.size;
  for (int64_t group = 0;; ++group) {
    for (int32_t step = 1; step <= o.size; ++step) {
      const int32_t owner = (o.rank + step) % o.size;
      const int64_t chunk = group * o.size + owner;
      const auto begin = static_cast<int32_t>(tiles * chunk / chunks);
      const int32_t rows = static_cast<int32_t>(tiles * (chunk + 1) / chunks) - begin;
      if (index < rows * o.tiles_n) return in_rectangle(o, begin, rows, owner, index);
      index -= rows * o.tiles_n;
    }
  }
}

}  // namespace tile_order_detail

/// How many of `some`, spread evenly among `all` >= some, come before position `index` <= all. On devices a division of
/// 64 bits takes three times as long as one of 32.
constexpr int32_t count_before(int32_t index, int32_t some, int32_t all) {
  constexpr int32_t kSmall = 1 << 16;
  if (all < kSmall)
    return static_cast<int32_t>(static_cast<uint32_t>(index) * static_cast<uint32_t>(some) /
                                static_cast<uint32_t>(all));
  return static_cast<int32_t>(static_cast<uint64_t>(index) * static_cast<uint64_t>(some) / static_cast<uint64_t>(all));
}

/// Row tiles of a shard in a band.
constexpr int32_t rows_in_band(const TileOrder& o, int32_t shard, int32_t band) {
  const int32_t left = o.first_tile[shard + 1] - o.first_tile[shard] - band * o.band;
  return left < 0 ? 0 : left < o.band ? left : o.band;
}

/// Tile `index` of those of the local shard in a band, of those of the others, rank + 1 first, of `all` woven.
constexpr TileCoord own_in_band(const TileOrder& o, int32_t band, int32_t index) {
  return tile_order_detail::in_rectangle(o, o.first_tile[o.rank] + band * o.band, rows_in_band(o, o.rank, band), o.rank,
                                         index);
}
constexpr TileCoord others_in_band(const TileOrder& o, int32_t band, int32_t index) {
  for (int32_t step = 1;; ++step) {
    const int32_t s = (o.rank + step) % o.size, rows = rows_in_band(o, s, band);
    if (index < rows * o.tiles_n)
      return tile_order_detail::in_rectangle(o, o.first_tile[s] + band * o.band, rows, s, index);
    index -= rows * o.tiles_n;
  }
}
constexpr TileCoord woven_in_band(const TileOrder& o, int32_t band, int32_t index, int32_t all) {
  const int32_t own = rows_in_band(o, o.rank, band) * o.tiles_n, before = count_before(index, own, all);
  if (count_before(index + 1, own, all) == before) return others_in_band(o, band, index - before);
  return own_in_band(o, band, before);
}

/// Precondition: 0 <= index < count_tiles(o). A bijection onto all (m, n).
constexpr TileCoord tile_at(const TileOrder& o, int32_t index) {
  switch (o.kind) {
    case TileOrderKind::rotated:
      return tile_order_detail::shard_by_shard(o, index);
    case TileOrderKind::woven: {
      int32_t band = 0, tiles = 0;
      for (;; ++band, index -= tiles) {
        tiles = 0;
        for (int32_t s = 0; s < o.size; ++s) tiles += rows_in_band(o, s, band) * o.tiles_n;
        if (index < tiles) return woven_in_band(o, band, index, tiles);
      }
    }
    case TileOrderKind::own_last: {
      const int32_t own = (o.first_tile[o.rank + 1] - o.first_tile[o.rank]) * o.tiles_n;
      const int32_t others = count_tiles(o) - own;
      if (index >= others)
        return tile_order_detail::in_rectangle(o, o.first_tile[o.rank], own / o.tiles_n, o.rank, index - others);
      for (int32_t band = 0;; ++band) {
        int32_t tiles = -rows_in_band(o, o.rank, band) * o.tiles_n;
        for (int32_t s = 0; s < o.size; ++s) tiles += rows_in_band(o, s, band) * o.tiles_n;
        if (index < tiles) return others_in_band(o, band, index);
        index -= tiles;
      }
    }
    case TileOrderKind::grouped:
      return tile_order_detail::grouped(o, index);
    case TileOrderKind::linear:
      break;
  }
  TileCoord at = tile_order_detail::in_rectangle(o, 0, count_row_tiles(o), 0, index);
  while (at.m >= o.first_tile[at.shard + 1]) ++at.shard;
  return at;
}

/// First row of the tile in the whole matrix.
constexpr int32_t first_row(const TileOrder& o, const TileCoord& at) {
  const int32_t s = o.kind == TileOrderKind::grouped ? 0 : at.shard;
  return o.row_begin[s] + (at.m - o.first_tile[s]) * o.tile_rows;
}

}  // namespace overlace
