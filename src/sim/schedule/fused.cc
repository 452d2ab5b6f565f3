// A fused kernel as nodes: tile groups in the order in which its grid visits tiles, and what its idle warps push.
#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <set>

#include "src/base/ceil_div_pod.h"
#include "src/sim/schedule/graph.h"
#include "src/spec/costs.h"
#include "src/spec/fused_pod.h"
#include "src/spec/operators.h"

namespace overlace::sim {
namespace {

using spec::Box;
using spec::Instance;

constexpr int kGroupsPerWave = 8;
constexpr int64_t kMaxTile = 65536;
constexpr int64_t kMaxNodes = 250'000;  // of one rank's kernel: some 100 MB

struct Rectangle {
  int64_t row, rows, col, cols, depth;
};

/// In rows of the whole matrix: AllGather writes them to C, GEMM and ReduceScatter reads them from A.
Rectangle rectangle_of(const spec::Schedule& schedule, const Instance& in) {
  const Box &a = in.reads[0][0], &b = in.reads[1][0], &c = in.writes[0][0];
  const bool is_ag = spec::gathers(schedule.op);
  const auto layout = schedule.params.find("b_layout");
  const bool is_kn = layout != schedule.params.end() && layout->second == spec::Param(std::string("kn"));
  const int n = is_kn ? 1 : 0;
  return {is_ag ? c.begin[0] : a.begin[0], is_ag ? c.count[0] : a.count[0], b.begin[n], b.count[n], a.count[1]};
}

}  // namespace

int64_t GraphBuilder::parameter(const char* name, int64_t otherwise) const {
  const auto it = schedule_.params.find(name);
  const int64_t* value = it == schedule_.params.end() ? nullptr : std::get_if<int64_t>(&it->second);
  return value == nullptr ? otherwise : *value;
}

/// Copies of the kernel, one behind the other, by stores of all SMs.
void GraphBuilder::add_push(int rank, const std::vector<int>& copies, uint32_t enter, uint32_t leave) {
  const spec::Expansion& expansion = graph_.expansions[static_cast<size_t>(rank)];
  uint32_t last = enter;
  for (const int index : copies) {
    const Instance& in = expansion.instances[static_cast<size_t>(index)];
    const uint32_t id = add_node(rank);
    Node& node = graph_.nodes[id];
    node.part_of = node.jitter = index;
    Work work;
    for (const Box& to : in.writes[0]) {
      if (!to.empty()) work.to = to.rank;
    }
    work.moved_bytes = bytes_of(schedule_, in.writes[0]);
    work.amount = static_cast<uint64_t>(work.moved_bytes);
    const bool is_local = work.to == rank;
    work.link_bytes = is_local ? 0 : work.moved_bytes;
    work.memory_bytes = work.moved_bytes;
    work.peer_memory_bytes = is_local ? 0 : work.moved_bytes;
    const spec::Curve& store = machine_.transport.store_GBps;
    const double rate = store.empty() ? machine_.link.egress_GBps.value : store.at(machine_.sms);
    work.flow_us = static_cast<double>(work.moved_bytes) / rate * 1e-3;
    work.load = spec::Load::sm_copy;
    set_flow(node, work);
    count_bytes(rank, work);
    add_waits(id, in, Waits::all);
    add_sets(id, in);
    connect(last, id);
    last = id;
  }
  connect(last, leave);
}

/// A kernel of few rows: its parts one behind the other, as tasks by themselves but for their
/// launches.
base::Status GraphBuilder::add_chain_of_parts(int rank, const std::vector<int>& parts, uint32_t enter, uint32_t leave) {
  const double host = host_[static_cast<size_t>(rank)];
  uint32_t last = enter;
  for (const int index : parts) {
    const uint32_t node = add_node(rank);
    OVERLACE_TRY(add_instance(rank, index, node));
    graph_.nodes[node].launch_ps = 0;
    connect(last, node);
    last = node;
  }
  connect(last, leave);
  host_[static_cast<size_t>(rank)] = host;
  return {};
}

/// Parts that move nothing: they pass on that what they depend on is done.
void GraphBuilder::add_idle(int rank, const std::vector<int>& parts, uint32_t enter, uint32_t leave) {
  for (const int index : parts) {
    const Instance& in = graph_.expansions[static_cast<size_t>(rank)].instances[static_cast<size_t>(index)];
    const uint32_t node = add_node(rank);
    graph_.nodes[node].instance = index;
    connect(enter, node);
    for (const int dep : in.deps) {
      if (const auto join = join_of_.find(dep); join != join_of_.end()) connect(join->second, node);
    }
    connect(node, leave);
    add_waits(node, in, Waits::all);
    add_sets(node, in);
    if (!in.sets.empty()) graph_.nodes[node].post_ps = ps_of_us(machine_.latency.wait_us.value);
    join_of_[index] = node;
  }
}

base::Status GraphBuilder::add_kernel(int rank, const std::vector<int>& parts, uint32_t enter, uint32_t leave) {
  const spec::Expansion& expansion = graph_.expansions[static_cast<size_t>(rank)];
  std::vector<int> copies, tiles, sums, idle;
  if (spec::takes_one_shot(schedule_)) return add_chain_of_parts(rank, parts, enter, leave);
  for (const int index : parts) {
    const Instance& in = expansion.instances[static_cast<size_t>(index)];
    const spec::Kind kind = task_of(in).kind;
    if (kind == spec::Kind::copy && !spec::gathers(schedule_.op) && bytes_written(schedule_, in) == 0) {
      idle.push_back(index);
      continue;
    }
    if (kind == spec::Kind::reduce && spec::gathers(schedule_.op))
      return base::error(Errc::bad_schedule,
                         "schedule {}: {} sums in the kernel of {}; wanted: parts that copy, and tiles",
                         schedule_.family, in.id(schedule_), schedule_.op);
    (kind == spec::Kind::copy ? copies : kind == spec::Kind::reduce ? sums : tiles).push_back(index);
  }
  if (!spec::gathers(schedule_.op) && !tiles.empty()) {
    OVERLACE_TRY(add_scatter(rank, tiles, sums, copies, enter, leave));
    add_idle(rank, idle, enter, leave);
    return {};
  }
  if (!copies.empty()) add_push(rank, copies, enter, leave);
  return tiles.empty() ? base::Status() : add_tiles(rank, tiles, enter, leave);
}

/// Instances of one rectangle of C are its slabs, in order; each ends when all of its tiles have.
base::Result<std::vector<GraphBuilder::Area>> GraphBuilder::areas_of(int rank, const std::vector<int>& parts,
                                                                     uint32_t enter, uint32_t leave) {
  const std::vector<Instance>& list = graph_.expansions[static_cast<size_t>(rank)].instances;
  std::vector<Area> areas;
  std::map<std::array<int64_t, 4>, size_t> numbers;
  std::set<std::array<int64_t, 5>> operands;  // read so far: the kernel reads each once, later uses are cached
  for (const int index : parts) {
    const Instance& in = list[static_cast<size_t>(index)];
    if (in.reads.size() < 2 || in.reads[0].size() != 1 || in.reads[1].size() != 1 || in.writes[0].size() != 1)
      return base::error(Errc::bad_schedule,
                         "{}: a part of tiles with {} regions to read; wanted: a box of a, one of b, and one to write",
                         in.id(schedule_), in.reads.size());
    const Rectangle at = rectangle_of(schedule_, in);
    const auto [known, is_new] = numbers.try_emplace({at.row, at.rows, at.col, at.cols}, areas.size());
    if (is_new) areas.push_back({at.row, at.rows, at.col, at.cols});
    Area* area = &areas[known->second];
    const uint32_t join = add_node(rank);
    graph_.nodes[join].instance = index;
    join_of_[index] = join;
    connect(enter, join);
    connect(join, leave);
    add_sets(join, in);
    Work whole;
    whole.to = in.writes[0][0].rank;
    whole.moved_bytes = bytes_of(schedule_, in.writes[0]);
    whole.link_bytes = whole.peer_memory_bytes = whole.to == rank ? 0 : whole.moved_bytes;
    if (spec::gathers(schedule_.op) && whole.link_bytes > 0)
      return base::error(Errc::bad_schedule, "{}: a part of tiles writes to rank {}, wanted its own {}",
                         in.id(schedule_), whole.to, rank);
    whole.memory_bytes = whole.to == rank ? whole.moved_bytes : 0;
    for (const std::vector<Box>* boxes : {&in.reads[0], &in.reads[1]}) {
      const Box& box = boxes->front();
      if (operands.insert({box.buffer, box.begin[0], box.count[0], box.begin[1], box.count[1]}).second)
        whole.memory_bytes += bytes_of(schedule_, *boxes);
    }
    whole.flops = 2.0 * static_cast<double>(at.rows) * static_cast<double>(at.cols) * static_cast<double>(at.depth);
    count_bytes(rank, whole);
    graph_.nodes[join].moved_bytes = whole.moved_bytes;
    graph_.nodes[join].memory_bytes = whole.memory_bytes;
    area->slabs.push_back({index, join, at.depth, whole});
    area->depth += at.depth;
  }
  return areas;
}

double GraphBuilder::tile_us(const Grid& grid, int64_t depth) const {
  const int64_t shard = base::ceil_div(parameter("M", 1), std::max<int64_t>(graph_.ranks, 1));
  return spec::tile_us(machine_, grid.rows / spec::kFusedTileSms, grid.cols, depth) *
         spec::fused_slowdown(machine_, shard, depth);
}

/// The chain of slabs of `tiles` tiles of an area; `before` is what these SMs did last. Returns the last node.
uint32_t GraphBuilder::add_chain(int rank, Area& area, int32_t tiles, const Grid& grid, uint32_t before) {
  const std::vector<Instance>& list = graph_.expansions[static_cast<size_t>(rank)].instances;
  uint32_t last = before;
  for (Slab& slab : area.slabs) {
    const uint32_t id = add_node(rank);
    Node& node = graph_.nodes[id];
    node.part_of = node.jitter = slab.instance;
    Work work;
    work.amount = static_cast<uint64_t>(2 * grid.rows * grid.cols * tiles * slab.depth);
    work.flow_us = tile_us(grid, area.depth) * static_cast<double>(slab.depth) /
                   static_cast<double>(std::max<int64_t>(area.depth, 1));
    set_flow(node, work);
    node.intensity = static_cast<double>(tiles) / grid.slots;
    node.weight = tiles;
    if (machine_.gemm.sustained_TFLOPs.value > 0) node.demand(resource_of(rank, Kept::tensor), 1);
    connect(last, id);
    add_waits(id, list[static_cast<size_t>(slab.instance)], Waits::all);
    last = id;
    connect(last, slab.join);
  }
  return last;
}

/// Tiles: of the schedule (gemm_rs), else what the kernel of ag_gemm chooses on this machine.
base::Result<GraphBuilder::Grid> GraphBuilder::grid_of() const {
  const auto off = schedule_.tables.find("off");
  if (off == schedule_.tables.end() || graph_.ranks > kOrderShards ||
      static_cast<int>(off->second.size()) != graph_.ranks + 1) {
    return base::error(Errc::not_supported,
                       "schedule {}: {} ranks with a fused kernel, wanted at most {} and a table off", schedule_.family,
                       graph_.ranks, kOrderShards);
  }
  const int64_t chosen = spec::gather_tile_cols(off->second, parameter("N", 1), machine_.sms);
  const Grid grid = {parameter("tile_m", spec::kFusedTileRows), parameter("tile_n", chosen),
                     std::max(1, machine_.sms / spec::kFusedTileSms)};
  if (grid.rows < 1 || grid.cols < 1 || grid.rows > kMaxTile || grid.cols > kMaxTile)
    return base::error(Errc::bad_schedule, "schedule {}: tiles of {} x {}, wanted 1 to {}", schedule_.family, grid.rows,
                       grid.cols, kMaxTile);
  return grid;
}

/// `nodes_per_tile`: about so many nodes are made of them.
base::Result<TileOrder> GraphBuilder::order_of(TileOrderKind kind, int rank, const Grid& grid,
                                               double nodes_per_tile) const {
  const int64_t tiles_n = base::ceil_div(parameter("N", 1), grid.cols);
  const int64_t tiles = base::ceil_div(parameter("M", 1), grid.rows) * tiles_n;
  if (tiles > std::numeric_limits<int32_t>::max() || static_cast<double>(tiles) * nodes_per_tile > kMaxNodes)
    return base::error(Errc::not_supported, "schedule {}: {} tiles are {:.0f} nodes, simulated are at most {}",
                       schedule_.family, tiles, static_cast<double>(tiles) * nodes_per_tile, kMaxNodes);
  TileOrder out = make_tile_order(kind, rank, graph_.ranks, schedule_.tables.at("off").data(),
                                  static_cast<int32_t>(grid.rows), static_cast<int32_t>(tiles_n));
  out.swizzle = kTileSwizzle;
  return out;
}

/// Tiles in the order of the grid: an eighth of a wave on an eighth of the SMs at a time.
base::Status GraphBuilder::add_tiles(int rank, const std::vector<int>& parts, uint32_t enter, uint32_t leave) {
  const base::Result<Grid> found_grid = grid_of();
  if (!found_grid.ok()) return found_grid.status();
  const Grid& grid = *found_grid;
  base::Result<std::vector<Area>> found = areas_of(rank, parts, enter, leave);
  if (!found.ok()) return found.status();
  std::vector<Area>& areas = *found;
  const auto items = schedule_.params.find("items");
  const bool is_rotated = items != schedule_.params.end() && items->second == spec::Param(std::string("rotated"));
  size_t slabs = 1;
  for (const Area& area : areas) slabs = std::max(slabs, area.slabs.size());
  const double nodes = static_cast<double>(slabs) * kGroupsPerWave / grid.slots;
  const base::Result<TileOrder> tile_order =
      order_of(is_rotated ? TileOrderKind::rotated : TileOrderKind::linear, rank, grid, nodes);
  if (!tile_order.ok()) return tile_order.status();
  const TileOrder& o = *tile_order;
  const int32_t total = count_tiles(o), groups = std::min(kGroupsPerWave, grid.slots);
  std::vector<uint32_t> before(static_cast<size_t>(groups), enter);
  std::vector<int32_t> tiles_in(areas.size());
  size_t hint = 0;
  for (int32_t wave = 0; wave * grid.slots < total; ++wave) {
    for (int32_t g = 0; g < groups; ++g) {
      const auto upto = [&](int32_t x) { return std::min(total, wave * grid.slots + grid.slots * x / groups); };
      std::fill(tiles_in.begin(), tiles_in.end(), 0);
      for (int32_t t = upto(g); t < upto(g + 1); ++t) {
        const TileCoord at = tile_at(o, t);
        const int64_t row = first_row(o, at), col = at.n * grid.cols;
        size_t tried = 0;  // neighbours mostly lie in one area
        while (tried < areas.size() && !areas[hint].has(row, col)) {
          hint = (hint + 1) % areas.size();
          ++tried;
        }
        if (tried == areas.size()) {
          return base::error(Errc::bad_schedule,
                             "schedule {}: no part computes row {} column {}; wanted: one for each tile",
                             schedule_.family, row, col);
        }
        ++tiles_in[hint];
      }
      std::vector<uint32_t> last;
      for (size_t a = 0; a < areas.size(); ++a) {
        if (tiles_in[a] > 0)
          last.push_back(add_chain(rank, areas[a], tiles_in[a], grid, before[static_cast<size_t>(g)]));
      }
      if (last.size() > 1) {  // the next tiles wait for one node, not for each of these
        const uint32_t joint = add_node(rank);
        for (const uint32_t node : last) connect(node, joint);
        last = {joint};
      }
      if (!last.empty()) before[static_cast<size_t>(g)] = last.front();
    }
  }
  return {};
}

}  // namespace overlace::sim
