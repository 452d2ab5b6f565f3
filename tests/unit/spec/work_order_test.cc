// What clusters of a kernel do that also sums and copies: everything once, and nobody waits in a circle.
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "src/spec/fused_pod.h"
#include "src/spec/work_order_pod.h"

namespace overlace {
namespace {

struct WorkCase {
  std::vector<int64_t> offsets;
  int tiles_n, bands, clusters;
  bool has_copies;
};

int size_of(const WorkCase& c) { return static_cast<int>(c.offsets.size()) - 1; }

/// As the kernel's host side makes them.
struct Orders {
  TileOrder tiles;
  TileGroups groups;
  WorkOrder work;
};
Orders orders_of(const WorkCase& c, int rank, int clusters) {
  Orders out;
  out.tiles = make_tile_order(TileOrderKind::woven, rank, size_of(c), c.offsets.data(), 256, c.tiles_n);
  out.tiles.swizzle = kTileSwizzle;
  out.groups = make_band_groups(longest_row_tiles(out.tiles), c.tiles_n, c.bands);
  out.tiles.band = out.groups.rows;
  out.work = make_work_order(out.tiles, clusters, c.has_copies);
  return out;
}

std::vector<WorkCase> all_cases() {
  const std::vector<std::vector<int64_t>> offsets = {
      {0, 1024, 2048},          {0, 0, 520},
      {0, 300, 300, 812, 1000}, {0, 4096, 8192},
      {0, 5000, 5001, 12000},   {0, 100, 200, 300, 400, 500, 600, 700, 800}};
  std::vector<WorkCase> out;
  for (const auto& rows : offsets) {
    for (const int tiles_n : {1, 7, 33}) {
      for (const int bands : {1, 2, 5, kMaxBands}) {
        for (const int clusters : {1, 2, 12, 66}) {
          for (const bool has_copies : {false, true}) out.push_back({rows, tiles_n, bands, clusters, has_copies});
        }
      }
    }
  }
  return out;
}

struct Item {
  Work work;
  TileCoord at;
};
std::vector<Item> items_of(const Orders& orders, int cluster) {
  std::vector<Item> out;
  for (WorkItems items(orders.tiles, orders.work, cluster); items.next();) out.push_back({items.work(), items.tile()});
  return out;
}

TEST(WorkOrder, EachProductSumAndCopyIsDoneOnce) {
  for (const WorkCase& c : all_cases()) {
    for (int rank = 0; rank < size_of(c); ++rank) {
      const Orders orders = orders_of(c, rank, c.clusters);
      std::set<std::tuple<Work, int, int>> seen;
      for (int cluster = 0; cluster < c.clusters; ++cluster) {
        for (const Item& item : items_of(orders, cluster)) {
          ASSERT_TRUE(seen.insert({item.work, item.at.m, item.at.n}).second);
          ASSERT_GE(item.at.m, orders.tiles.first_tile[item.at.shard]);
          ASSERT_LT(item.at.m, orders.tiles.first_tile[item.at.shard + 1]);
          if (item.work != Work::product) {
            ASSERT_EQ(item.at.shard == rank, item.work == Work::sum);
          }
        }
      }
      const int own = orders.tiles.first_tile[rank + 1] - orders.tiles.first_tile[rank];
      const int tiles = count_tiles(orders.tiles), added = c.has_copies ? tiles : own * c.tiles_n;
      ASSERT_EQ(static_cast<int>(seen.size()), tiles + added);
    }
  }
}

/// All clusters of all ranks, which need not have as many, each stopped where it waits for what has not come: none
/// stays stopped.
TEST(WorkOrder, NobodyWaitsInACircle) {
  for (const WorkCase& c : all_cases()) {
    std::vector<Orders> orders;
    std::vector<std::vector<Item>> lists;
    for (int rank = 0; rank < size_of(c); ++rank) {
      const int clusters = rank % 2 == 0 ? c.clusters : c.clusters / 2 + 1;
      orders.push_back(orders_of(c, rank, clusters));
      for (int cluster = 0; cluster < clusters; ++cluster) lists.push_back(items_of(orders.back(), cluster));
    }
    std::map<std::tuple<int, int>, int> parts, sums;  // that have come, of (owner, group)
    const auto may_go = [&](const Item& item) {
      const Orders& o = orders[0];  // groups are alike on all ranks
      const int owner = item.at.shard, group = group_of(o.groups, o.tiles, item.at);
      const int tiles = tiles_of_group(o.groups, o.tiles.first_tile[owner + 1] - o.tiles.first_tile[owner], group);
      if (item.work == Work::sum) return parts[{owner, group}] == tiles * size_of(c);
      return item.work == Work::product || sums[{owner, group}] == tiles;
    };
    std::vector<size_t> at(lists.size());
    for (bool moves = true; moves;) {
      moves = false;
      for (size_t i = 0; i < lists.size(); ++i) {
        for (; at[i] < lists[i].size() && may_go(lists[i][at[i]]); ++at[i], moves = true) {
          const Item& item = lists[i][at[i]];
          if (item.work == Work::copy) continue;
          ++(item.work == Work::sum ? sums
                                    : parts)[{item.at.shard, group_of(orders[0].groups, orders[0].tiles, item.at)}];
        }
      }
    }
    for (size_t i = 0; i < lists.size(); ++i) ASSERT_EQ(at[i], lists[i].size()) << c.bands << " bands";
  }
}

TEST(WorkOrder, SumsAndCopiesOfFirstBandsComeAmongProductsOfLaterOnes) {
  const Orders orders = orders_of({{0, 4096, 8192}, 64, 8, 66, true}, 1, 66);
  const std::vector<Item> items = items_of(orders, 3);
  size_t last_product = 0, sums = 0, copies = 0;
  for (size_t i = 0; i < items.size(); ++i)
    if (items[i].work == Work::product) last_product = i;
  for (size_t i = 0; i < last_product; ++i) {
    sums += items[i].work == Work::sum ? 1 : 0;
    copies += items[i].work == Work::copy ? 1 : 0;
  }
  EXPECT_GT(sums, 10U) << "of 15 or 16";
  EXPECT_GT(copies, 8U);
  const std::vector<Item> whole = items_of(orders_of({{0, 4096, 8192}, 64, 1, 66, true}, 1, 66), 3);
  for (size_t i = 1; i < whole.size(); ++i) EXPECT_GE(whole[i].work, whole[i - 1].work) << "one band: kind by kind";
}

}  // namespace
}  // namespace overlace
