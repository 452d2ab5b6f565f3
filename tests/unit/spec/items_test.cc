#include "src/spec/items.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "src/spec/check.h"
#include "src/spec/checks/graph.h"
#include "src/spec/fused_pod.h"
#include "src/spec/work_order_pod.h"

namespace overlace::spec {
namespace {

Schedule fused_kernel(const std::string& op, const std::string& family, int degree, int64_t m, int ranks,
                      std::vector<int64_t> row_offsets = {}) {
  OpSpec spec;
  spec.op = op;
  spec.m = m;
  spec.n = 640;
  spec.k = 512;
  spec.ranks = ranks;
  spec.bias = true;
  spec.row_offsets = std::move(row_offsets);
  return make_schedule(spec, family, degree);
}

std::vector<Item> items(const Schedule& schedule, int rank, const Workers& workers = {}) {
  const int ranks = static_cast<int>(schedule.tables.at("off").size()) - 1;
  return items_of(schedule, expand(schedule, rank, ranks).value(), workers).value();
}

std::string task_of(const Schedule& schedule, const Item& item) {
  return schedule.tasks[static_cast<size_t>(item.tile.task)].id;
}

/// Own tiles among those of the others and sums behind, as the kernel's order functions say.
TEST(Items, OfAWovenListAreThoseOfTheWorkOrder) {
  const Schedule s = fused_kernel("gemm_ar", "tma_slot", 2, 3 * 1100, 3);
  for (const int workers : {1, 2, 3}) {
    for (int rank = 0; rank < 3; ++rank) {
      TileOrder order = make_tile_order(TileOrderKind::woven, rank, 3, s.tables.at("off").data(), 256, 5);
      order.swizzle = kTileSwizzle;
      order.band = make_band_groups(longest_row_tiles(order), 5, 2).rows;
      const WorkOrder work = make_work_order(order, workers, true);
      const std::vector<Item> list = items(s, rank, {.count = workers});
      ASSERT_EQ(static_cast<int>(list.size()), count_items(work));
      for (int n = 0; n < count_items(work); ++n) {
        const auto [kind, at] = item_of(order, work, n);
        const bool is_own = at.shard == rank;
        const Item& item = list[static_cast<size_t>(n)];
        EXPECT_EQ(task_of(s, item), kind == Work::sum    ? "sum_own"
                                    : kind == Work::copy ? "copy_out"
                                    : is_own             ? "tiles_own"
                                                         : "tiles_remote");
        const Box& to = item.tile.writes[0][0];
        const int64_t row = to.begin[to.ndim - 2] + (is_own || kind == Work::copy ? 0 : order.row_begin[at.shard]);
        EXPECT_EQ(row, first_row(order, at)) << "item " << n;
        EXPECT_EQ(to.begin[to.ndim - 1], at.n * 128) << "item " << n;
        EXPECT_FALSE(item.follows);
      }
    }
  }
}

/// Slabs of a tile follow each other, tiles of rank + 1 those of this rank.
TEST(Items, OfARotatedListGoThroughTheSlabsOfATile) {
  const Schedule s = fused_kernel("ag_gemm", "k_slab", 2, 3 * 130, 3);
  const std::vector<Item> list = items(s, 1);
  std::vector<std::string> seen;
  for (const Item& item : list) {
    std::string name = task_of(s, item) + (item.follows ? "+" : "");
    if (seen.empty() || seen.back() != name) seen.push_back(std::move(name));
  }
  ASSERT_GE(seen.size(), 4U);
  EXPECT_EQ(seen[0], "tiles_own");
  EXPECT_EQ(seen[1], "tiles_first");
  EXPECT_EQ(seen[2], "tiles_add+");
  EXPECT_EQ(seen[3], "tiles_first");
  const auto first = std::find_if(list.begin(), list.end(), [](const Item& item) { return item.follows; });
  const Box &before = (first - 1)->tile.writes[0][0], &now = first->tile.writes[0][0];
  EXPECT_EQ(before, now) << "one tile";
  EXPECT_EQ((first - 1)->tile.loop_values[0], 1) << "of rank + 1";
}

TEST(Items, MakeUpEachPartOnceWhateverTheShards) {
  const std::vector<std::vector<int64_t>> offsets = {{0, 0, 700, 701}, {0, 512, 512, 1024}, {0, 1, 2, 1300}};
  for (const auto& off : offsets) {
    for (const auto& [op, family] : {std::pair("gemm_rs", "tma_slot"), std::pair("gemm_ar", "tma_slot"),
                                     std::pair("gemm_rs", "tracked"), std::pair("ag_gemm", "k_slab")}) {
      const Schedule s = fused_kernel(op, family, 3, off.back(), 3, off);
      for (int rank = 0; rank < 3; ++rank) {
        const Expansion all = expand(s, rank, 3).value();
        std::vector<std::set<std::pair<int64_t, int64_t>>> corners(all.instances.size());
        std::vector<int64_t> elements(all.instances.size(), 0);
        const std::vector<Item> list = items_of(s, all, {}).value();
        for (const Item& item : list) {
          const Box& to = item.tile.writes[0][0];
          EXPECT_TRUE(
              corners[static_cast<size_t>(item.instance)].emplace(to.begin[to.ndim - 2], to.begin[to.ndim - 1]).second)
              << "twice";
          elements[static_cast<size_t>(item.instance)] += to.numel();
        }
        for (size_t i = 0; i < all.instances.size(); ++i) {
          const Instance& in = all.instances[i];
          const std::string& id = s.tasks[static_cast<size_t>(in.task)].id;
          const bool is_listed = id.starts_with("tiles") || id == "sum_own" || id == "copy_out";
          EXPECT_EQ(elements[i], is_listed ? in.writes[0][0].numel() : 0) << op << " " << in.id(s);
        }
      }
    }
  }
}

TEST(Items, AListThatTheScheduleDoesNotMatchIsRefused) {
  const auto refused = [](const Schedule& s) {
    const auto list = items_of(s, expand(s, 0, 3).value(), {});
    return list.ok() ? std::string("taken") : list.status().message();
  };
  const auto task = [](Schedule& s, const std::string& id) -> Task& {
    return *std::find_if(s.tasks.begin(), s.tasks.end(), [&](const Task& t) { return t.id == id; });
  };
  const Schedule good = fused_kernel("gemm_rs", "tma_slot", 4, 3 * 1024, 3);
  Schedule s = good;
  s.params["items"] = std::string("sorted");
  EXPECT_EQ(refused(s), "schedule tma_slot_rs: items is sorted, wanted woven, own_last or rotated");
  s = good;
  s.params["items"] = std::string("rotated");
  EXPECT_NE(refused(s).find("has no part tiles_own for rows 0"), std::string::npos) << refused(s);
  s = good;
  task(s, "tiles_own").id = "mine";
  task(s, "sum_own").deps = {"mine"};
  EXPECT_NE(refused(s).find("has no part tiles_own"), std::string::npos) << refused(s);
  s = good;
  task(s, "tiles_remote").deps = {"sum_own"};
  task(s, "tiles_remote").order = "G+2";
  EXPECT_NE(refused(s).find("on which it depends; wanted: the other way round"), std::string::npos) << refused(s);
  s = fused_kernel("gemm_rs", "tma_slot", 4, 3 * 8192, 3);
  s.params["tile_m"] = int64_t{300};  // other bands than the parts have
  EXPECT_NE(refused(s).find("of tiles_remote[p=1,s=0,j=0]; wanted: a tile inside rows 0:2048"), std::string::npos)
      << refused(s);
  s = good;
  s.params["tile_m"] = int64_t{0};
  EXPECT_NE(refused(s).find("tile_m is 0, wanted 1 to 1048576"), std::string::npos) << refused(s);
  s = good;
  s.tables.erase("slab");
  s.tables["slabs"] = good.tables.at("slab");
  for (Task& each : s.tasks)
    for (auto* regions : {&each.reads, &each.writes})
      for (Region& region : *regions)
        for (Range& range : region.dims) {
          std::string begin = range.begin.text(), count = range.count.text();
          for (std::string* text : {&begin, &count})
            for (size_t at = 0; (at = text->find("slab[", at)) != std::string::npos; at += 6) text->insert(at + 4, "s");
          range = {begin, count};
        }
  EXPECT_NE(refused(s).find("no table slab"), std::string::npos) << refused(s);
  EXPECT_EQ(refused(good), "taken");
}

TEST(Items, AreNoneWhereKernelsDoNotReach) {
  EXPECT_TRUE(items(fused_kernel("gemm_rs", "tma_slot", 2, 9 * 64, 9), 0).empty());
  EXPECT_TRUE(items(fused_kernel("gemm_rs", "hetero_fused_1d", 2, 3 * 64, 3), 0).empty());
}

/// With its sums in front of what peers wait for, each list stops the team; S7 sees that in the list, whatever the lane
/// says.
TEST(Items, S7FindsTheCircleOfEachListThatIsSwapped) {
  for (const char* op : {"gemm_rs", "gemm_ar"}) {
    const Schedule s = fused_kernel(op, "tma_slot", 2, 3 * 1100, 3);
    AllRanks team{&s, {}};
    for (int rank = 0; rank < 3; ++rank) team.ranks.push_back(expand(s, rank, 3).value());
    ASSERT_TRUE(team.list_items().ok());
    EXPECT_TRUE(Graph(team, 1, Graph::progress).circle().empty()) << op;
    for (int rank = 0; rank < 3; ++rank) {
      auto& spans = team.drawn[static_cast<size_t>(rank)];
      for (size_t i = 0; i < spans.size(); ++i) {
        const std::string& id = s.tasks[static_cast<size_t>(team.at(rank, static_cast<int>(i)).task)].id;
        if (spans[i] && id == "tiles_remote") spans[i] = {spans[i]->first + 1'000'000, spans[i]->second + 1'000'000};
      }
    }
    EXPECT_FALSE(Graph(team, 1, Graph::progress).circle().empty()) << op;
  }
}

/// What a kernel's list is made of: shards, tiles along N and how many groups were asked for.
struct WovenCase {
  std::vector<int64_t> offsets;
  int tiles_n = 1;
  int64_t groups = 1;
  bool sums_travel = false;
};

std::string woven_text(const WovenCase& c) {
  std::string out = "offsets";
  for (const int64_t at : c.offsets) out += " " + std::to_string(at);
  return out + ", tiles_n " + std::to_string(c.tiles_n) + ", groups " + std::to_string(c.groups) +
         (c.sums_travel ? ", sums travel" : "");
}

/// Numbers on both sides of each limit: one group, kMaxBands, kMaxGroups. Shards that are even, uneven, short and
/// empty.
std::vector<WovenCase> woven_cases() {
  const std::vector<std::vector<int64_t>> offsets = {
      {0, 1024, 2048}, {0, 0, 700, 701, 9000}, {0, 30000, 30001, 30300}, {0, 256, 4700, 17700, 17700, 70000}};
  std::vector<WovenCase> out;
  for (const auto& rows : offsets)
    for (const int tiles_n : {1, 5, 70})
      for (const int64_t groups : {0, 1, 16, 17, 64, 65})
        for (const bool sums_travel : {false, true}) out.push_back({rows, tiles_n, groups, sums_travel});
  return out;
}

TileOrder woven_order(const WovenCase& c, int rank) {
  TileOrder out = make_tile_order(TileOrderKind::woven, rank, static_cast<int>(c.offsets.size()) - 1, c.offsets.data(),
                                  static_cast<int32_t>(kSlotTileRows), c.tiles_n);
  out.swizzle = kTileSwizzle;
  return out;
}

int own_rows(const TileOrder& o, int shard) { return o.first_tile[shard + 1] - o.first_tile[shard]; }

/// Each tile is in one group, and no group is empty. Where sums stay with their owners, tiles of a group come together:
/// the last one is in front of the first of the owner's next group. Where they travel, those of a band come together,
/// and its groups, which lie side by side along N, take turns if a band is higher than a block of the order.
TEST(WovenGroups, EachTileIsInOneGroupAndTheGroupsOfAnOwnerComeInTheirOrder) {
  for (const WovenCase& c : woven_cases()) {
    SCOPED_TRACE(woven_text(c));
    const int size = static_cast<int>(c.offsets.size()) - 1;
    for (int rank = 0; rank < size; ++rank) {
      TileOrder order = woven_order(c, rank);
      const TileGroups groups = woven_groups(&order, c.groups, c.sums_travel);
      std::vector<std::vector<int>> begun(static_cast<size_t>(size)), tiles(static_cast<size_t>(size));
      for (int owner = 0; owner < size; ++owner)
        tiles[static_cast<size_t>(owner)].resize(static_cast<size_t>(count_groups(groups, own_rows(order, owner))));
      std::vector<int> seen(static_cast<size_t>(count_tiles(order)));
      for (int i = 0; i < count_tiles(order); ++i) {
        const TileCoord at = tile_at(order, i);
        const auto owner = static_cast<size_t>(at.shard);
        const int group = group_of(groups, order, at), turn = c.sums_travel ? group / groups.groups_n : group;
        if (begun[owner].empty() || begun[owner].back() != turn) begun[owner].push_back(turn);
        ++tiles[owner].at(static_cast<size_t>(group));
        ++seen[static_cast<size_t>(at.m * order.tiles_n + at.n)];
      }
      EXPECT_EQ(seen, std::vector<int>(seen.size(), 1)) << "each tile once";
      for (int owner = 0; owner < size; ++owner) {
        const auto& counts = tiles[static_cast<size_t>(owner)];
        std::vector<int> turns(counts.size() / static_cast<size_t>(c.sums_travel ? groups.groups_n : 1));
        std::iota(turns.begin(), turns.end(), 0);
        EXPECT_EQ(begun[static_cast<size_t>(owner)], turns) << "rank " << rank << ", owner " << owner;
        for (size_t group = 0; group < counts.size(); ++group) {
          EXPECT_GT(counts[group], 0) << "group " << group << " of owner " << owner;
          EXPECT_EQ(counts[group], tiles_of_group(groups, own_rows(order, owner), static_cast<int32_t>(group)));
        }
      }
    }
  }
}

/// The owner counts what it awaits by its own groups, senders by theirs.
TEST(WovenGroups, AreThoseOfAllRanks) {
  for (const WovenCase& c : woven_cases()) {
    SCOPED_TRACE(woven_text(c));
    TileOrder first = woven_order(c, 0);
    const TileGroups of_first = woven_groups(&first, c.groups, c.sums_travel);
    for (int rank = 1; rank + 1 < static_cast<int>(c.offsets.size()); ++rank) {
      TileOrder order = woven_order(c, rank);
      const TileGroups groups = woven_groups(&order, c.groups, c.sums_travel);
      EXPECT_EQ(std::tie(groups.rows, groups.cols, groups.groups_n, groups.tiles_n),
                std::tie(of_first.rows, of_first.cols, of_first.groups_n, of_first.tiles_n));
      EXPECT_EQ(order.band, first.band);
    }
  }
}

TEST(WovenGroups, AreAtMostSoManyAndTheOrderHasBandsWhereSumsTravel) {
  for (const WovenCase& c : woven_cases()) {
    SCOPED_TRACE(woven_text(c));
    TileOrder order = woven_order(c, 0);
    const TileGroups groups = woven_groups(&order, c.groups, c.sums_travel);
    const int longest = longest_row_tiles(order), bands = (longest + groups.rows - 1) / groups.rows;
    const int64_t asked = std::max<int64_t>(c.groups, 1);
    if (c.sums_travel) {
      EXPECT_EQ(order.band, groups.rows) << "a group lies in one band";
      EXPECT_LE(bands, std::min<int64_t>(asked, kMaxBands));
      EXPECT_LE(count_groups(groups, longest), kMaxGroups);
    } else {
      EXPECT_EQ(order.band, kWhole);
      EXPECT_EQ(groups.rows % kTileSwizzle, 0) << "a block of the order is in one group";
      EXPECT_LE(count_groups(groups, longest), std::min<int64_t>(asked, kMaxGroups));
    }
  }
}

/// Fewer than one are one, and what lies beyond a limit changes nothing.
TEST(WovenGroups, NumbersBeyondTheirLimitsAreTheLimit) {
  const auto of = [](int64_t groups, bool sums_travel) {
    TileOrder order = woven_order({{0, sums_travel ? 30000 : 1000, 30001, 30300}, 65}, 1);
    const TileGroups g = woven_groups(&order, groups, sums_travel);
    return std::tuple(g.rows, g.cols, g.groups_n, order.band);
  };
  for (const bool sums_travel : {false, true}) {
    EXPECT_EQ(of(0, sums_travel), of(1, sums_travel));
    EXPECT_EQ(of(-3, sums_travel), of(1, sums_travel));
    EXPECT_EQ(of(65, sums_travel), of(64, sums_travel));
    EXPECT_EQ(of(int64_t{1} << 40, sums_travel), of(64, sums_travel));
    EXPECT_NE(of(16, sums_travel), of(1, sums_travel));
  }
  EXPECT_EQ(of(17, true), of(16, true)) << "no more bands than kMaxBands";
  EXPECT_NE(of(64, false), of(17, false)) << "more than kMaxBands groups";
}

/// An own sum awaits products of its band alone. Without bands that is the whole list; with them the sums of a band
/// stand among the products of later ones, and copies behind the sums of their band.
TEST(WovenGroups, OwnSumsStandBehindTheProductsOfTheirBandAndBeforeLaterBandsEnd) {
  int with_sums_between = 0;
  for (const WovenCase& c : woven_cases()) {
    SCOPED_TRACE(woven_text(c));
    for (int rank = 0; rank + 1 < static_cast<int>(c.offsets.size()); ++rank) {
      TileOrder order = woven_order(c, rank);
      (void)woven_groups(&order, c.groups, c.sums_travel);
      const WorkOrder work = make_work_order(order, /*clusters=*/3, c.sums_travel);
      std::map<int, int> last_product, first_sum, last_sum, first_copy, sums;
      int last = -1;
      for (int i = 0; i < count_items(work); ++i) {
        const auto [kind, at] = item_of(order, work, i);
        const int band = (at.m - order.first_tile[at.shard]) / order.band;
        if (kind == Work::product) last_product[band] = last = i;
        if (kind == Work::copy) first_copy.emplace(band, i);
        if (kind != Work::sum) continue;
        EXPECT_EQ(at.shard, rank) << "a sum of another's rows";
        first_sum.emplace(band, i);
        last_sum[band] = i;
        ++sums[band];
      }
      int all = 0;
      for (const auto& [band, count] : sums) {
        all += count;
        EXPECT_GT(first_sum[band], last_product[band]) << "rank " << rank << ", band " << band;
        if (first_copy.contains(band)) {
          EXPECT_GT(first_copy[band], last_sum[band]) << "band " << band;
        }
        with_sums_between += last_sum[band] < last ? 1 : 0;
      }
      EXPECT_EQ(all, own_rows(order, rank) * order.tiles_n) << "each own tile is summed once";
      EXPECT_EQ(first_copy.empty(), !c.sums_travel || all == count_tiles(order)) << "rank " << rank;
      if (!c.sums_travel && !sums.empty()) {
        EXPECT_EQ(first_sum[0], last + 1) << "sums end the list";
      }
    }
  }
  EXPECT_GT(with_sums_between, 0) << "no case had bands";
}

}  // namespace
}  // namespace overlace::spec
