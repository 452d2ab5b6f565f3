// Groups of tiles: what senders add for a group is what its owner waits for.
#include <gtest/gtest.h>

#include <vector>

#include "src/spec/fused_pod.h"

namespace overlace {
namespace {

constexpr int kTileRows = 256;

struct GroupCase {
  std::vector<int64_t> offsets;
  int tiles_n, swizzle, most;
  TileOrderKind kind;
};

TileOrder group_order(const GroupCase& c, int rank) {
  TileOrder o =
      make_tile_order(c.kind, rank, static_cast<int>(c.offsets.size()) - 1, c.offsets.data(), kTileRows, c.tiles_n);
  o.swizzle = c.swizzle;
  return o;
}

std::vector<GroupCase> group_cases() {
  std::vector<GroupCase> cases;
  const std::vector<std::vector<int64_t>> offsets = {{0, 512, 1024},
                                                     {0, 0, 520},
                                                     {0, 300, 300, 812, 1000},
                                                     {0, 8192, 16384, 24576, 32768},
                                                     {0, 70000, 70001, 140000},
                                                     {0, 100, 200, 300, 400, 500, 600, 700, 800}};
  for (const auto& rows : offsets) {
    for (const int tiles_n : {1, 7, 32, 100}) {
      for (const int swizzle : {1, 3, 8}) {
        for (const int most : {1, 5, 64}) {
          for (const TileOrderKind kind : {TileOrderKind::rotated, TileOrderKind::woven})
            cases.push_back({rows, tiles_n, swizzle, most, kind});
        }
      }
    }
  }
  return cases;
}

TEST(TileGroups, EachSenderFillsEachGroupOfEachOwner) {
  for (const GroupCase& c : group_cases()) {
    const int size = static_cast<int>(c.offsets.size()) - 1;
    for (int sender = 0; sender < size; ++sender) {
      const TileOrder o = group_order(c, sender);
      const TileGroups g = make_groups(o, c.most);
      std::vector<std::vector<int>> sent(static_cast<size_t>(size), std::vector<int>(static_cast<size_t>(c.most)));
      for (int i = 0; i < count_tiles(o); ++i) {
        const TileCoord at = tile_at(o, i);
        const int group = group_of(g, o, at);
        ASSERT_GE(group, 0);
        ASSERT_LT(group, c.most);
        ++sent[static_cast<size_t>(at.shard)][static_cast<size_t>(group)];
      }
      for (int owner = 0; owner < size; ++owner) {
        const TileOrder there = group_order(c, owner);
        const TileGroups awaited = make_groups(there, c.most);
        const int rows = there.first_tile[owner + 1] - there.first_tile[owner];
        for (int group = 0; group < c.most; ++group) {
          const int want = group < count_groups(awaited, rows) ? tiles_of_group(awaited, rows, group) : 0;
          ASSERT_EQ(sent[static_cast<size_t>(owner)][static_cast<size_t>(group)], want)
              << "sender " << sender << " owner " << owner << " group " << group << " of " << c.most << ", swizzle "
              << c.swizzle << ", tiles_n " << c.tiles_n;
        }
      }
    }
  }
}

/// The owner waits for a group once: its own tiles never return to one, be they multiplied, whatever the kind, or
/// summed.
TEST(TileGroups, OwnTilesNeverReturnToAGroup) {
  for (const GroupCase& c : group_cases()) {
    const int size = static_cast<int>(c.offsets.size()) - 1;
    for (int rank = 0; rank < size; ++rank) {
      const TileOrder o = group_order(c, rank);
      const TileGroups g = make_groups(o, c.most);
      const int own = (o.first_tile[rank + 1] - o.first_tile[rank]) * o.tiles_n;
      int last = -1, seen = 0;
      for (int i = 0; i < count_tiles(o); ++i) {
        const TileCoord at = tile_at(o, i);
        if (at.shard != rank) continue;
        ASSERT_EQ(group_of(g, o, own_in_band(o, 0, seen++)), group_of(g, o, at)) << "tile " << i;
        const int group = group_of(g, o, at);
        ASSERT_GE(group, last) << "tile " << i;
        last = group;
      }
      EXPECT_EQ(seen, own);
    }
  }
}

TEST(TileGroups, AreAsFineAsTheirNumberAllows) {
  const GroupCase c{{0, 2048, 4096, 6144, 8192}, 32, 8, 64, TileOrderKind::woven};
  const TileGroups fine = make_groups(group_order(c, 1), 64), coarse = make_groups(group_order(c, 1), 8);
  EXPECT_EQ(fine.rows, 8);
  EXPECT_EQ(fine.cols, 1);
  EXPECT_EQ(count_groups(fine, 8), 32);
  EXPECT_EQ(coarse.cols, 4);
  EXPECT_EQ(count_groups(coarse, 8), 8);
}

}  // namespace
}  // namespace overlace
