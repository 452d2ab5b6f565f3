#include <gtest/gtest.h>

#include <cstdlib>
#include <set>
#include <vector>

#include "src/spec/tile_order_pod.h"

namespace overlace {
namespace {

using Kind = TileOrderKind;
constexpr Kind kKinds[] = {Kind::linear, Kind::rotated, Kind::woven, Kind::own_last, Kind::grouped};

struct OrderCase {
  Kind kind;
  int size, rank, swizzle, groups;
  TileSweep sweep;
};

/// Ragged: an empty shard, one of a single row, others of different lengths.
std::vector<int64_t> ragged_offsets(int size) {
  std::vector<int64_t> offsets = {0};
  for (int s = 0; s < size; ++s) offsets.push_back(offsets.back() + (s == 1 ? 0 : s == 2 ? 1 : 100 * s + 37));
  return offsets;
}
std::vector<int64_t> equal_offsets(int size, int64_t rows) {
  std::vector<int64_t> offsets;
  for (int s = 0; s <= size; ++s) offsets.push_back(s * rows);
  return offsets;
}

TileOrder order_of(const OrderCase& c, const std::vector<int64_t>& offsets, int tile_rows, int tiles_n) {
  TileOrder o = make_tile_order(c.kind, c.rank, c.size, offsets.data(), tile_rows, tiles_n);
  o.sweep = c.sweep;
  o.swizzle = c.swizzle;
  o.groups = c.groups;
  return o;
}

std::vector<OrderCase> order_cases() {
  std::vector<OrderCase> cases;
  for (const Kind kind : kKinds) {
    for (int size = 1; size <= kOrderShards; ++size) {
      for (const int rank : {0, size / 2, size - 1}) {
        for (const int swizzle : {1, 3, 8}) {
          for (const TileSweep sweep : {TileSweep::along_n, TileSweep::along_m}) {
            cases.push_back({kind, size, rank, swizzle, kind == Kind::grouped ? swizzle : 1, sweep});
          }
        }
      }
    }
  }
  return cases;
}

/// Every (m, n) once, in range; rows of the tile are those of its shard.
void expect_bijection(const TileOrder& o, const std::vector<int64_t>& offsets) {
  std::set<std::pair<int, int>> seen;
  for (int i = 0; i < count_tiles(o); ++i) {
    const TileCoord at = tile_at(o, i);
    ASSERT_GE(at.m, 0);
    ASSERT_LT(at.m, count_row_tiles(o));
    ASSERT_GE(at.n, 0);
    ASSERT_LT(at.n, o.tiles_n);
    ASSERT_TRUE(seen.insert({at.m, at.n}).second) << "tile " << i << " comes twice: " << at.m << ", " << at.n;
    ASSERT_GE(at.shard, 0);
    ASSERT_LT(at.shard, o.size);
    const int row = first_row(o, at);
    if (o.kind == Kind::grouped) {
      ASSERT_EQ(row, at.m * o.tile_rows);
    } else {
      const auto s = static_cast<size_t>(at.shard);
      ASSERT_GE(row, offsets[s]);
      ASSERT_LT(row, offsets[s + 1]);
      ASSERT_EQ((row - offsets[s]) % o.tile_rows, 0);
    }
  }
  EXPECT_EQ(seen.size(), static_cast<size_t>(count_row_tiles(o) * o.tiles_n));
}

TEST(TileOrder, VisitsEachTileOfEqualShardsOnce) {
  for (const OrderCase& c : order_cases()) {
    SCOPED_TRACE(testing::Message() << "kind " << static_cast<int>(c.kind) << " size " << c.size << " rank " << c.rank
                                    << " swizzle " << c.swizzle << " sweep " << static_cast<int>(c.sweep));
    const auto offsets = equal_offsets(c.size, 5 * 64);
    const TileOrder o = order_of(c, offsets, 64, 7);
    ASSERT_EQ(count_tiles(o), c.size * 5 * 7);
    expect_bijection(o, offsets);
  }
}

TEST(TileOrder, VisitsEachTileOfRaggedAndEmptyShardsOnce) {
  for (const OrderCase& c : order_cases()) {
    SCOPED_TRACE(testing::Message() << "kind " << static_cast<int>(c.kind) << " size " << c.size << " rank " << c.rank
                                    << " swizzle " << c.swizzle << " sweep " << static_cast<int>(c.sweep));
    const auto offsets = ragged_offsets(c.size);
    expect_bijection(order_of(c, offsets, 64, 3), offsets);
  }
}

TEST(TileOrder, NoRowsMeansNoTiles) {
  for (const Kind kind : kKinds) {
    const auto offsets = equal_offsets(4, 0);
    EXPECT_EQ(count_tiles(order_of({kind, 4, 1, 4, 2, TileSweep::along_n}, offsets, 128, 10)), 0);
  }
}

std::vector<int> shards_in_order(const TileOrder& o) {
  std::vector<int> shards;
  for (int i = 0; i < count_tiles(o); ++i) {
    const int s = tile_at(o, i).shard;
    if (shards.empty() || shards.back() != s) shards.push_back(s);
  }
  return shards;
}

TEST(TileOrder, ShardsComeInTheOrderThatTheNameSays) {
  const auto offsets = equal_offsets(4, 256);
  const auto shards = [&](Kind kind, int swizzle) {
    return shards_in_order(order_of({kind, 4, 1, swizzle, 2, TileSweep::along_n}, offsets, 64, 5));
  };
  EXPECT_EQ(shards(Kind::linear, 4), (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(shards(Kind::rotated, 4), (std::vector<int>{1, 2, 3, 0}));
  EXPECT_EQ(shards(Kind::grouped, 4), (std::vector<int>{2, 3, 0, 1, 2, 3, 0, 1}));
}

TEST(TileOrder, WovenSpreadsTheOwnTilesEvenlyAndKeepsTheirOrder) {
  for (const OrderCase& c : order_cases()) {
    if (c.kind != Kind::woven) continue;
    const TileOrder o = order_of(c, ragged_offsets(c.size), 64, 3);
    const int64_t all = count_tiles(o), own = int64_t{o.first_tile[c.rank + 1] - o.first_tile[c.rank]} * o.tiles_n;
    int64_t seen = 0, others = 0;
    for (int i = 0; i < all; ++i) {
      const TileCoord at = tile_at(o, i);
      const bool is_own = at.shard == c.rank;
      TileOrder rotated = o;  // own tiles, then those of the others
      rotated.kind = Kind::rotated;
      const TileCoord want = tile_at(rotated, static_cast<int>(is_own ? seen : own + others));
      EXPECT_TRUE(at.m == want.m && at.n == want.n && at.shard == want.shard) << "tile " << i;
      (is_own ? seen : others) += 1;
      EXPECT_LE(std::abs(seen * all - (i + 1) * own), all) << "tile " << i << ": not as many as evenly";
    }
    EXPECT_EQ(seen, own);
  }
}

TEST(TileOrder, GroupedGivesEachOwnerAsManyChunksAndAscendsByGroups) {
  const auto offsets = equal_offsets(4, 1024);  // 64 row tiles, 8 chunks of 8
  const TileOrder o = order_of({Kind::grouped, 4, 2, 4, 2, TileSweep::along_n}, offsets, 64, 3);
  for (int i = 0; i < count_tiles(o); ++i) {
    const TileCoord at = tile_at(o, i);
    EXPECT_EQ(at.shard, at.m / 8 % 4);
    EXPECT_EQ(at.m / 32, i / (32 * 3)) << "tile " << i << " is of another group";
  }
}

TEST(TileOrder, BlocksOfTheSwizzleSweepTheOtherDimension) {
  const auto offsets = equal_offsets(1, 5 * 16);
  const auto path = [&](TileSweep sweep) {
    const TileOrder o = order_of({Kind::linear, 1, 0, 2, 1, sweep}, offsets, 16, 3);
    std::vector<std::pair<int, int>> out;
    for (int i = 0; i < count_tiles(o); ++i) out.emplace_back(tile_at(o, i).m, tile_at(o, i).n);
    return out;
  };
  const auto along_n = path(TileSweep::along_n), along_m = path(TileSweep::along_m);
  const std::vector<std::pair<int, int>> first_n = {{0, 0}, {1, 0}, {0, 1}, {1, 1}, {0, 2}, {1, 2}, {2, 0}, {3, 0}};
  const std::vector<std::pair<int, int>> last_n = {{4, 0}, {4, 1}, {4, 2}};
  EXPECT_TRUE(std::equal(first_n.begin(), first_n.end(), along_n.begin()));
  EXPECT_TRUE(std::equal(last_n.begin(), last_n.end(), along_n.end() - 3));
  const std::vector<std::pair<int, int>> first_m = {{0, 0}, {0, 1}, {1, 0}, {1, 1}, {2, 0}, {2, 1}};
  const std::vector<std::pair<int, int>> last_m = {{0, 2}, {1, 2}, {2, 2}, {3, 2}, {4, 2}};
  EXPECT_TRUE(std::equal(first_m.begin(), first_m.end(), along_m.begin()));
  EXPECT_TRUE(std::equal(last_m.begin(), last_m.end(), along_m.end() - 5));
}

TEST(TileOrder, IsAConstantExpression) {
  constexpr int64_t kOffsets[] = {0, 300, 300, 513};
  constexpr TileOrder o = make_tile_order(Kind::rotated, 2, 3, kOffsets, 128, 2);
  static_assert(count_row_tiles(o) == 5);
  static_assert(tile_at(o, 0).m == 3 && tile_at(o, 0).shard == 2);
  static_assert(first_row(o, tile_at(o, 2)) == 428);
  EXPECT_EQ(first_row(o, tile_at(o, 4)), 0);
}

}  // namespace
}  // namespace overlace
