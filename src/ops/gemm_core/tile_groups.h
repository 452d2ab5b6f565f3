// Groups of tiles of one owner's rows that are told to it together: rectangles of clusters' tiles.
#pragma once

#include <cstdint>

#include "src/spec/tile_order_pod.h"

namespace overlace::ops::gemm_core {

/// Sizes in tiles of the cluster; `groups_n` of them lie side by side along N.
struct TileGroups {
  int32_t rows, cols, groups_n, tiles_n;
};

/// At most `most` groups per owner, as fine as that allows: along N first, since tiles sweep N. All ranks make them
/// alike: nothing depends on the rank.
constexpr TileGroups make_groups(const TileOrder& o, int32_t most) {
  const auto pieces = [](int32_t x, int32_t piece) { return (x + piece - 1) / piece; };
  int32_t longest = 1;
  for (int s = 0; s < o.size; ++s) {
    const int32_t rows = o.first_tile[s + 1] - o.first_tile[s];
    longest = rows > longest ? rows : longest;
  }
  TileGroups g{};
  g.tiles_n = o.tiles_n;
  g.rows = o.swizzle * pieces(pieces(longest, o.swizzle), most);
  g.cols = pieces(o.tiles_n, most / pieces(longest, g.rows));
  g.groups_n = pieces(o.tiles_n, g.cols);
  return g;
}

constexpr int32_t group_of(const TileGroups& g, const TileOrder& o, const TileCoord& at) {
  return (at.m - o.first_tile[at.shard]) / g.rows * g.groups_n + at.n / g.cols;
}
/// Groups of an owner of `own_rows` rows of tiles, and the tiles of one of them.
constexpr int32_t count_groups(const TileGroups& g, int32_t own_rows) {
  return (own_rows + g.rows - 1) / g.rows * g.groups_n;
}
constexpr int32_t tiles_of_group(const TileGroups& g, int32_t own_rows, int32_t group) {
  const int32_t tall = own_rows - group / g.groups_n * g.rows, wide = g.tiles_n - group % g.groups_n * g.cols;
  return (tall < g.rows ? tall : g.rows) * (wide < g.cols ? wide : g.cols);
}

}  // namespace overlace::ops::gemm_core
