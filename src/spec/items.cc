#include "src/spec/items.h"

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "src/base/ceil_div_pod.h"
#include "src/base/format.h"
#include "src/spec/fused_pod.h"
#include "src/spec/operators.h"
#include "src/spec/work_order_pod.h"

namespace overlace::spec {
namespace {

/// Rows and columns of an instance's result.
struct Window {
  int64_t row = 0, rows = 0, col = 0, cols = 0;
};

/// Cuts boxes of a matrix, or of a list of them; a vector has columns alone.
void cut_windows(std::vector<Box>* boxes, const Window& rows_of, const Window& cols_of, bool is_turned = false) {
  for (Box& box : *boxes) {
    if (box.empty()) continue;
    const int col = is_turned ? box.ndim - 2 : box.ndim - 1, row = is_turned ? box.ndim - 1 : box.ndim - 2;
    if (cols_of.cols > 0) {
      box.begin[col] += cols_of.col;
      box.count[col] = cols_of.cols;
    }
    if (row < 0 || rows_of.rows == 0) continue;
    box.begin[row] += rows_of.row;
    box.count[row] = rows_of.rows;
  }
}

/// The instance with regions of a window of its sums.
Instance tile_of(const Schedule& schedule, const Instance& whole, const Window& at) {
  const Task& task = schedule.tasks[static_cast<size_t>(whole.task)];
  const int64_t pair = columns_per_result(task.params);
  const Window result = {at.row, at.rows, at.col / pair, at.cols / pair};
  Instance out = whole;
  for (size_t i = 0; i < out.reads.size(); ++i) {
    const bool is_product = task.kind == Kind::tiles;
    if (is_product && i == 0) {
      cut_windows(&out.reads[i], at, {});
    } else if (is_product && i == 1) {
      const auto layout = task.params.find("b_layout");
      cut_windows(&out.reads[i], {}, at, layout != task.params.end() && layout->second == Param(std::string("nk")));
    } else {
      cut_windows(&out.reads[i], at, at);
    }
  }
  for (std::vector<Box>& boxes : out.writes) cut_windows(&boxes, result, result);
  return out;
}

bool is_inside(const Box& inner, const Box& outer) {
  for (int d = 0; d < outer.ndim; ++d) {
    const int64_t end = outer.begin[d] + outer.count[d];
    if (inner.begin[d] < outer.begin[d] || inner.begin[d] + inner.count[d] > end) return false;
  }
  return true;
}

/// Begin and end of the dimension that is the `nth` from behind.
std::string range_text(const Box& box, int nth) {
  const int d = box.ndim - nth;
  return d < 0 ? "0:1" : base::format("{}:{}", box.begin[d], box.begin[d] + box.count[d]);
}

int64_t parameter_of(const Schedule& schedule, std::string_view name, int64_t otherwise) {
  const auto found = schedule.params.find(name);
  const auto* value = found == schedule.params.end() ? nullptr : std::get_if<int64_t>(&found->second);
  return value == nullptr ? otherwise : *value;
}

/// Makes the list of a rank.
class Lister {
 public:
  Lister(const Schedule& schedule, const Expansion& expansion, const Workers& workers)
      : schedule_(schedule),
        expansion_(expansion),
        workers_(workers),
        off_(schedule.tables.at("off")),
        tile_{parameter("tile_m", workers.tile_rows), parameter("tile_n", workers.tile_cols)},
        columns_(parameter("N", 0)) {
    for (size_t i = 0; i < expansion.instances.size(); ++i) {
      const Instance& in = expansion.instances[i];
      parts_[{schedule.tasks[static_cast<size_t>(in.task)].id, in.loop_values}] = static_cast<int>(i);
    }
  }

  /// Own tiles are computed among those of the others; sums and copies come bands behind.
  base::Status add_woven() {
    TileOrder order = order_of(TileOrderKind::woven);
    const bool has_copies = returns_to_all(schedule_.op);
    const TileGroups cuts = woven_groups(&order, parameter("groups", 1), has_copies);
    const WorkOrder work = make_work_order(order, std::max(workers_.count, 1), has_copies);
    for (int32_t number = 0; number < count_items(work); ++number) {
      const auto [kind, at] = item_of(order, work, number);
      const bool is_own = at.shard == order.rank;
      const int64_t s = (at.m - order.first_tile[at.shard]) / cuts.rows, j = at.n / cuts.cols;
      const int64_t p = (at.shard - order.rank + order.size) % order.size;
      const std::vector<int64_t>&bands = schedule_.tables.at("cut"), &strips = schedule_.tables.at("slab");
      const auto band = static_cast<size_t>(at.shard * parameter("q", 1) + s), strip = static_cast<size_t>(j);
      if (s >= parameter("q", 1) || strip >= strips.size())
        return base::error(Errc::bad_schedule,
                           "schedule {}: group {}, {} of its list of items; wanted: {} bands of {} "
                           "strips",
                           schedule_.family, s, j, parameter("q", 1), strips.size());
      const Window window = window_of(order, at, bands[band], strips[strip]);
      OVERLACE_TRY(kind == Work::sum    ? add("sum_own", {s, j}, window)
                   : kind == Work::copy ? add("copy_out", {s, j, p}, window)
                   : is_own             ? add("tiles_own", {s, j}, window)
                                        : add("tiles_remote", {p, s, j}, window));
    }
    return {};
  }

  /// Tiles of the others chunk by chunk, then own ones.
  base::Status add_own_last() {
    TileOrder order = order_of(TileOrderKind::own_last);
    order.band = chunk_groups(order, parameter("groups", 1)).rows;
    for (int32_t number = 0; number < count_tiles(order); ++number) {
      const TileCoord at = tile_at(order, number);
      const int64_t p = (at.shard - order.rank + order.size) % order.size;
      if (p == 0) {
        OVERLACE_TRY(add("tiles_own", {}, window_of(order, at, off_[static_cast<size_t>(at.shard)], 0)));
        continue;
      }
      const int64_t s = (at.m - order.first_tile[at.shard]) / order.band;
      const auto chunk = static_cast<size_t>(at.shard * parameter("q", 1) + s);
      if (s >= parameter("q", 1))
        return base::error(Errc::bad_schedule, "schedule {}: chunk {} of its list of items; wanted: {} chunks",
                           schedule_.family, s, parameter("q", 1));
      OVERLACE_TRY(add("tiles_remote", {s, p}, window_of(order, at, schedule_.tables.at("cut")[chunk], 0)));
    }
    return {};
  }

  /// Own tiles, then those of rank + 1 and so on, each slab by slab.
  base::Status add_rotated() {
    const TileOrder order = order_of(TileOrderKind::rotated);
    for (int32_t number = 0; number < count_tiles(order); ++number) {
      const TileCoord at = tile_at(order, number);
      const Window window = window_of(order, at, off_[static_cast<size_t>(at.shard)], 0);
      const int64_t p = (at.shard - order.rank + order.size) % order.size;
      if (p == 0) {
        OVERLACE_TRY(add("tiles_own", {}, window));
        continue;
      }
      for (int64_t s = 0; s < parameter("q", 1); ++s)
        OVERLACE_TRY(add(s == 0 ? "tiles_first" : "tiles_add", {p, s}, window, /*follows=*/s > 0));
    }
    return {};
  }

  std::vector<Item> take() { return std::move(items_); }

 private:
  struct Tile {
    int64_t rows, cols;
  };

  int64_t parameter(std::string_view name, int64_t otherwise) const { return parameter_of(schedule_, name, otherwise); }

  TileOrder order_of(TileOrderKind kind) const {
    TileOrder out =
        make_tile_order(kind, expansion_.rank, expansion_.ranks, off_.data(), static_cast<int32_t>(tile_.rows),
                        static_cast<int32_t>(base::ceil_div(columns_, tile_.cols)));
    out.swizzle = kTileSwizzle;
    return out;
  }

  Window window_of(const TileOrder& order, const TileCoord& at, int64_t first_row_of_part, int64_t first_col) const {
    const int64_t row = first_row(order, at), col = at.n * tile_.cols;
    const int64_t rows = std::min(tile_.rows, off_[static_cast<size_t>(at.shard) + 1] - row);
    return {row - first_row_of_part, rows, col - first_col, std::min(tile_.cols, columns_ - col)};
  }

  base::Status add(const char* task, std::vector<int64_t> loop_values, const Window& window, bool follows = false) {
    const auto part = parts_.find({task, std::move(loop_values)});
    if (part == parts_.end())
      return base::error(Errc::bad_schedule,
                         "schedule {}: rank {} has no part {} for rows {} and columns {}; wanted: "
                         "the parts of its list of items",
                         schedule_.family, expansion_.rank, task, window.row, window.col);
    const Instance& whole = expansion_.instances[static_cast<size_t>(part->second)];
    items_.push_back({part->second, tile_of(schedule_, whole, window), follows});
    return {};
  }

  const Schedule& schedule_;
  const Expansion& expansion_;
  const Workers workers_;
  const std::vector<int64_t>& off_;
  const Tile tile_;
  const int64_t columns_;
  std::map<std::pair<std::string, std::vector<int64_t>>, int> parts_;
  std::vector<Item> items_;
};

/// Empty if the order functions take the schedule's sizes.
std::string problem(const Schedule& schedule, const Expansion& expansion, const Workers& workers) {
  const auto off = schedule.tables.find("off");
  if (off == schedule.tables.end() || off->second.size() != static_cast<size_t>(expansion.ranks) + 1)
    return base::format("no table off of {} entries", expansion.ranks + 1);
  if (!std::is_sorted(off->second.begin(), off->second.end()) || off->second.front() != 0)
    return "a table off that falls or does not begin with 0";
  for (const char* name : {"tile_m", "tile_n", "groups", "q"}) {
    const auto found = schedule.params.find(name);
    const auto* value = found == schedule.params.end() ? nullptr : std::get_if<int64_t>(&found->second);
    if (value != nullptr && (*value < 1 || *value > (int64_t{1} << 20)))
      return base::format("{} is {}, wanted 1 to {}", name, *value, int64_t{1} << 20);
  }
  if (workers.tile_rows < 1 || workers.tile_cols < 1) return "tiles without rows or columns";
  constexpr int64_t kMostExtent = int64_t{1} << 30, kMostItems = 1'000'000;
  const int64_t rows = off->second.back(), columns = parameter_of(schedule, "N", 0);
  if (rows > kMostExtent || columns < 0 || columns > kMostExtent)
    return base::format("{} rows and {} columns, wanted at most {}", rows, columns, kMostExtent);
  const int64_t tiles = (base::ceil_div(rows, parameter_of(schedule, "tile_m", workers.tile_rows)) + expansion.ranks) *
                        base::ceil_div(columns, parameter_of(schedule, "tile_n", workers.tile_cols));
  if (tiles * parameter_of(schedule, "q", 1) > kMostItems)
    return base::format("{} tiles of {} slabs, wanted at most {}", tiles, parameter_of(schedule, "q", 1), kMostItems);
  return "";
}

/// Empty if the tables say where the parts of a woven list begin.
std::string problem_of_parts(const Schedule& schedule, const Expansion& expansion) {
  const auto has = [&](const char* name, int64_t entries) {
    const auto found = schedule.tables.find(name);
    return found != schedule.tables.end() && static_cast<int64_t>(found->second.size()) >= entries;
  };
  const int64_t q = parameter_of(schedule, "q", 1);
  if (!has("cut", q * expansion.ranks + 1)) return base::format("no table cut of {} entries", q * expansion.ranks + 1);
  return has("slab", 2) ? "" : "no table slab";
}

/// Whoever draws items in their order waits for nothing that lies behind them.
base::Status check_order(const Schedule& schedule, const Expansion& expansion, const std::vector<Item>& items) {
  std::vector<int64_t> left(expansion.instances.size(), 0);
  for (const Item& item : items) ++left[static_cast<size_t>(item.instance)];
  for (const Item& item : items) {
    const Instance& in = expansion.instances[static_cast<size_t>(item.instance)];
    for (const int dep : in.deps) {
      if (left[static_cast<size_t>(dep)] == 0) continue;
      return base::error(Errc::bad_schedule,
                         "schedule {}: rank {} draws {} before {}, on which it depends; wanted: the other way round",
                         schedule.family, expansion.rank, in.id(schedule),
                         expansion.instances[static_cast<size_t>(dep)].id(schedule));
    }
    --left[static_cast<size_t>(item.instance)];
  }
  return {};
}

/// Tiles of a part make up its result: they lie in it, and have as many elements.
base::Status check_cover(const Schedule& schedule, const Expansion& expansion, const std::vector<Item>& items) {
  std::vector<int64_t> covered(expansion.instances.size(), 0);
  const auto elements = [](const Instance& in) {
    int64_t out = 0;
    for (const auto& boxes : in.writes)
      for (const Box& box : boxes) out += box.numel();
    return out;
  };
  for (const Item& item : items) {
    const Instance& whole = expansion.instances[static_cast<size_t>(item.instance)];
    for (size_t i = 0; i < whole.writes.size(); ++i)
      for (size_t b = 0; b < whole.writes[i].size(); ++b)
        if (!is_inside(item.tile.writes[i][b], whole.writes[i][b]))
          return base::error(Errc::bad_schedule,
                             "schedule {}: an item of rank {} writes rows {} and columns {} of {}; wanted: a tile "
                             "inside rows {} and columns {}",
                             schedule.family, expansion.rank, range_text(item.tile.writes[i][b], 2),
                             range_text(item.tile.writes[i][b], 1), whole.id(schedule),
                             range_text(whole.writes[i][b], 2), range_text(whole.writes[i][b], 1));
    covered[static_cast<size_t>(item.instance)] += elements(item.tile);
  }
  for (size_t i = 0; i < covered.size(); ++i) {
    const Instance& in = expansion.instances[i];
    const Task& task = schedule.tasks[static_cast<size_t>(in.task)];
    const bool is_listed = is_part(task) && (task.kind == Kind::tiles || covered[i] > 0);
    if (is_listed && covered[i] != elements(in))
      return base::error(Errc::bad_schedule, "schedule {}: items of rank {} write {} elements of {}; wanted: all {}",
                         schedule.family, expansion.rank, covered[i], in.id(schedule), elements(in));
  }
  return {};
}

}  // namespace

TileGroups woven_groups(TileOrder* order, int64_t groups, bool sums_travel) {
  const auto most = static_cast<int32_t>(std::clamp<int64_t>(groups, 1, kMaxGroups));
  if (!sums_travel) return make_groups(*order, most);
  const TileGroups bands = make_band_groups(longest_row_tiles(*order), order->tiles_n, most);
  order->band = bands.rows;
  return bands;
}

TileGroups chunk_groups(const TileOrder& order, int64_t chunks) {
  return make_chunk_groups(longest_row_tiles(order), order.tiles_n,
                           static_cast<int32_t>(std::clamp<int64_t>(chunks, 1, kMaxPieces)));
}

base::Result<std::vector<Item>> items_of(const Schedule& schedule, const Expansion& expansion, const Workers& workers) {
  const auto kind = schedule.params.find("items");
  if (kind == schedule.params.end() || expansion.ranks < 2 || expansion.ranks > kOrderShards)
    return std::vector<Item>{};
  const std::string* const name = std::get_if<std::string>(&kind->second);
  const auto is = [&](std::string_view kind_name) { return name != nullptr && *name == kind_name; };
  const bool is_rotated = is("rotated"), is_own_last = is("own_last");
  if (!is("woven") && !is_rotated && !is_own_last)
    return base::error(Errc::bad_schedule, "schedule {}: items is {}, wanted woven, own_last or rotated",
                       schedule.family, name == nullptr ? "no text" : *name);
  if (const std::string what = problem(schedule, expansion, workers); !what.empty())
    return base::error(Errc::bad_schedule, "schedule {}: {} items with {}", schedule.family, *name, what);
  if (const std::string what = is_rotated ? "" : problem_of_parts(schedule, expansion); !what.empty())
    return base::error(Errc::bad_schedule, "schedule {}: {} items with {}", schedule.family, *name, what);
  Lister lister(schedule, expansion, workers);
  OVERLACE_TRY(is_rotated ? lister.add_rotated() : is_own_last ? lister.add_own_last() : lister.add_woven());
  std::vector<Item> items = lister.take();
  OVERLACE_TRY(check_order(schedule, expansion, items));
  OVERLACE_TRY(check_cover(schedule, expansion, items));
  return items;
}

}  // namespace overlace::spec
