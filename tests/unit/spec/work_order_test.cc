// The list of a kernel that also sums and copies: everything once, and whoever takes items in order comes to the end.
#include <gtest/gtest.h>

#include <algorithm>
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

/// Orders as the kernel's host side makes them.
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

std::vector<WorkCase> work_cases() {
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

std::vector<WorkItem> items_of(const Orders& orders) {
  std::vector<WorkItem> out;
  for (int32_t number = 0; number < count_items(orders.work); ++number)
    out.push_back(item_of(orders.tiles, orders.work, number));
  return out;
}

TEST(WorkOrder, EachProductSumAndCopyIsDoneOnce) {
  for (const WorkCase& c : work_cases()) {
    for (int rank = 0; rank < size_of(c); ++rank) {
      const Orders orders = orders_of(c, rank, c.clusters);
      std::set<std::tuple<Work, int, int>> seen;
      for (const auto& [work, at] : items_of(orders)) {
        ASSERT_TRUE(seen.insert({work, at.m, at.n}).second);
        ASSERT_GE(at.m, orders.tiles.first_tile[at.shard]);
        ASSERT_LT(at.m, orders.tiles.first_tile[at.shard + 1]);
        if (work != Work::product) {
          ASSERT_EQ(at.shard == rank, work == Work::sum);
        }
      }
      const int own = orders.tiles.first_tile[rank + 1] - orders.tiles.first_tile[rank];
      const int tiles = count_tiles(orders.tiles), added = c.has_copies ? tiles : own * c.tiles_n;
      ASSERT_EQ(static_cast<int>(seen.size()), tiles + added);
    }
  }
}

/// Ranks whose workers take the items of its list in order, each stopped where its item waits for what has not come.
/// Nobody stays stopped, however many workers are resident on each rank: a GPU may have room for one alone.
class Team {
 public:
  Team(const WorkCase& c, const std::vector<int>& workers) : case_(c) {
    for (int rank = 0; rank < size_of(c); ++rank) {
      orders_.push_back(orders_of(c, rank, rank % 2 == 0 ? c.clusters : c.clusters / 2 + 1));
      ranks_.push_back({items_of(orders_.back()), 0, {}});
      ranks_.back().held.resize(static_cast<size_t>(workers[static_cast<size_t>(rank)]), kNone);
    }
  }
  bool ends() {
    for (bool moves = true; moves;) {
      moves = false;
      for (Rank& rank : ranks_)
        for (size_t& held : rank.held) moves = work(rank, &held) || moves;
    }
    return std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) {
      return rank.next == rank.items.size() &&
             std::all_of(rank.held.begin(), rank.held.end(), [](size_t held) { return held == kNone; });
    });
  }

 private:
  static constexpr size_t kNone = ~size_t{0};
  struct Rank {
    std::vector<WorkItem> items;
    size_t next;
    std::vector<size_t> held;
  };

  int group(const TileCoord& at) const { return group_of(orders_[0].groups, orders_[0].tiles, at); }  // alike on all
  bool may_go(const WorkItem& item) {
    const Orders& o = orders_[0];
    const int owner = item.at.shard;
    const int rows = o.tiles.first_tile[owner + 1] - o.tiles.first_tile[owner];
    const int tiles = tiles_of_group(o.groups, rows, group(item.at));
    if (item.work == Work::sum) return parts_[{owner, group(item.at)}] == tiles * size_of(case_);
    return item.work == Work::product || sums_[{owner, group(item.at)}] == tiles;
  }
  bool work(Rank& rank, size_t* held) {
    if (*held == kNone) {
      if (rank.next == rank.items.size()) return false;
      *held = rank.next++;
      return true;
    }
    const WorkItem& item = rank.items[*held];
    if (!may_go(item)) return false;
    if (item.work != Work::copy) ++(item.work == Work::sum ? sums_ : parts_)[{item.at.shard, group(item.at)}];
    *held = kNone;
    return true;
  }

  const WorkCase& case_;
  std::vector<Orders> orders_;
  std::vector<Rank> ranks_;
  std::map<std::tuple<int, int>, int> parts_, sums_;  // that have come, of (owner, group)
};

TEST(WorkOrder, AnyResidentWorkersComeToTheEnd) {
  for (const WorkCase& c : work_cases()) {
    const auto ranks = static_cast<size_t>(size_of(c));
    std::vector<int> mixed;
    for (size_t rank = 0; rank < ranks; ++rank) mixed.push_back(rank % 2 == 0 ? 1 : c.clusters);
    for (const std::vector<int>& workers : {std::vector<int>(ranks, 1), std::vector<int>(ranks, c.clusters), mixed})
      ASSERT_TRUE(Team(c, workers).ends()) << c.bands << " bands, " << workers[0] << " workers";
  }
}

TEST(WorkOrder, SumsAndCopiesOfFirstBandsComeAmongProductsOfLaterOnes) {
  const std::vector<WorkItem> items = items_of(orders_of({{0, 4096, 8192}, 64, 8, 66, true}, 1, 66));
  size_t last_product = 0, sums = 0, copies = 0;
  for (size_t i = 0; i < items.size(); ++i)
    if (items[i].work == Work::product) last_product = i;
  for (size_t i = 0; i < last_product; ++i) {
    sums += items[i].work == Work::sum ? 1 : 0;
    copies += items[i].work == Work::copy ? 1 : 0;
  }
  EXPECT_GT(sums, 850U) << "of 1024";
  EXPECT_GT(copies, 700U) << "of 1024";
  const std::vector<WorkItem> whole = items_of(orders_of({{0, 4096, 8192}, 64, 1, 66, true}, 1, 66));
  for (size_t i = 1; i < whole.size(); ++i) EXPECT_GE(whole[i].work, whole[i - 1].work) << "one band: kind by kind";
}

/// While a stage begins, the last products of the stage before are still being multiplied.
TEST(WorkOrder, NoSumFollowsTheProductsOfItsBandAtOnce) {
  const int clusters = 66;
  const std::vector<WorkItem> items = items_of(orders_of({{0, 4096, 8192}, 64, 4, clusters, true}, 0, clusters));
  int run = 0;
  for (size_t i = 1; i < items.size(); ++i) {
    if (items[i].work == Work::product) {
      ++run;
    } else {
      EXPECT_GE(run, clusters + clusters / 2);
      break;
    }
  }
}

}  // namespace
}  // namespace overlace
