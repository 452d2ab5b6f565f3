// A kernel that stores tiles to their owners and sums its own, or counts tiles for copies, as nodes: what each of its
// clusters does, item by item of the list (src/spec/work_order_pod.h). A number is drawn by the cluster that is free
// first, as far as that is known before the times are.
#include <algorithm>
#include <array>
#include <functional>
#include <queue>

#include "src/sim/schedule/graph.h"
#include "src/spec/costs.h"
#include "src/spec/items.h"
#include "src/spec/work_order_pod.h"

namespace overlace::sim {

using spec::Box;
using spec::Instance;

/// The kernel of one rank. Tiles have numbers, row by row of tiles.
class ScatterKernel {
 public:
  ScatterKernel(GraphBuilder& builder, int rank, const TileOrder& order, const GraphBuilder::Grid& grid)
      : b_(builder), rank_(rank), order_(order), grid_(grid) {}

  base::Status add(const std::vector<GraphBuilder::Area>& areas, const std::vector<int>& sums,
                   const std::vector<int>& copies, uint32_t enter, uint32_t leave);

 private:
  /// What is computed, or carried to or from a peer, as one instance.
  struct Piece {
    int instance = -1;
    uint32_t join = 0;  // completes with the last tile
    Work whole;
    int64_t tiles = 0, done = 0;
  };
  struct Rectangle {
    GraphBuilder::Area area;
    std::vector<int32_t> pieces;
    int32_t sum = -1;  // of own tiles: the piece that adds to them what peers have sent
  };
  /// GB/s, of one cluster and of all together.
  struct Rates {
    double alone = 0, all = 0;
  };
  /// What it did last, and its last store: stores follow each other, and nothing of the cluster waits for them.
  struct Cluster {
    uint32_t last, stored;
  };

  const Instance& instance(int index) const {
    return b_.graph_.expansions[static_cast<size_t>(rank_)].instances[static_cast<size_t>(index)];
  }
  size_t number(const TileCoord& at) const { return static_cast<size_t>(at.m * order_.tiles_n + at.n); }
  base::Result<std::vector<Rectangle>> carried_of(const std::vector<int>& copies, uint32_t enter, uint32_t leave);
  base::Status add_areas(const std::vector<GraphBuilder::Area>& areas, const std::vector<int>& sums, uint32_t enter,
                         uint32_t leave);
  Piece& add_piece(int index, uint32_t enter, uint32_t leave);
  base::Status lay_out(const std::vector<Rectangle>& list, std::vector<int32_t>* rectangle);
  void set_rates(const std::vector<GraphBuilder::Area>& areas);
  double us_of(overlace::Work kind) const;
  uint32_t add_node(Piece* piece, const Work& work, Cluster* cluster);
  uint32_t add_moving(Piece* piece, Work work, const Rates& rates, Kept kept, double capacity, Cluster* cluster);
  void add_adding(Piece* piece, int tiles, Cluster* cluster);
  void add_store(Piece* piece, Cluster* cluster);
  void add_product(const TileCoord& at, Cluster* cluster);
  void add_sum(const TileCoord& at, Cluster* cluster);
  void add_copy(const TileCoord& at, Cluster* cluster);

  GraphBuilder& b_;
  const int rank_;
  const TileOrder order_;
  const GraphBuilder::Grid grid_;
  const bool is_counted_ = spec::is_tracked(b_.schedule_);  // tiles stay here, and nothing is summed
  int64_t depth_ = 0, tile_bytes_ = 0;
  Rates store_, add_;
  std::vector<Piece> pieces_;
  std::vector<Rectangle> computed_, carried_;
  std::vector<int32_t> computed_at_, carried_at_;  // by tile: the rectangle
  std::vector<uint32_t> done_;                     // by rectangle of products
};

namespace {

/// What the next of `all` tiles has of a number: all of them together have all of it.
int64_t share_of(int64_t whole, int64_t all, int64_t done) {
  const auto upto = [&](int64_t t) { return whole / all * t + whole % all * t / all; };
  return upto(done + 1) - upto(done);
}

}  // namespace

/// A copy or a sum, and the node at which it ends.
ScatterKernel::Piece& ScatterKernel::add_piece(int index, uint32_t enter, uint32_t leave) {
  const Instance& in = instance(index);
  Piece& piece = pieces_.emplace_back();
  piece.instance = index;
  piece.join = b_.add_node(rank_);
  piece.whole.moved_bytes = bytes_of(b_.schedule_, in.writes[0]);
  b_.graph_.nodes[piece.join].instance = index;
  b_.graph_.nodes[piece.join].moved_bytes = piece.whole.moved_bytes;
  b_.join_of_[index] = piece.join;
  b_.connect(enter, piece.join);
  b_.connect(piece.join, leave);
  b_.add_sets(piece.join, in);
  return piece;
}

/// Copies by the rectangle of the result that they carry.
base::Result<std::vector<ScatterKernel::Rectangle>> ScatterKernel::carried_of(const std::vector<int>& copies,
                                                                              uint32_t enter, uint32_t leave) {
  std::vector<Rectangle> out;
  std::map<std::array<int64_t, 4>, size_t> numbers;
  for (const int index : copies) {
    const Instance& in = instance(index);
    if (in.reads.size() != 1 || in.reads[0].size() != 1 || in.writes.size() != 1 || in.writes[0].size() != 1 ||
        in.reads[0][0].ndim != 2)
      return base::error(Errc::bad_schedule,
                         "{}: a part that copies {} regions to {}; wanted: one box of rows and columns each",
                         in.id(b_.schedule_), in.reads.size(), in.writes.size());
    const Box& from = in.reads[0][0];
    const auto [known, is_new] =
        numbers.try_emplace({from.begin[0], from.count[0], from.begin[1], from.count[1]}, out.size());
    if (is_new) out.push_back({{from.begin[0], from.count[0], from.begin[1], from.count[1]}, {}});
    out[known->second].pieces.push_back(static_cast<int32_t>(pieces_.size()));
    Work& whole = add_piece(index, enter, leave).whole;
    whole.to = in.writes[0][0].rank;
    whole.link_bytes = whole.peer_memory_bytes = whole.to == rank_ ? 0 : whole.moved_bytes;
    b_.count_bytes(rank_, whole);
  }
  return out;
}

/// Which rectangle a tile lies in; how many tiles its pieces have.
base::Status ScatterKernel::lay_out(const std::vector<Rectangle>& list, std::vector<int32_t>* rectangle) {
  const bool is_carried = &list == &carried_;
  rectangle->resize(static_cast<size_t>(count_tiles(order_)));
  size_t hint = 0;
  for (int32_t shard = 0; shard < order_.size; ++shard) {
    for (TileCoord at{order_.first_tile[shard], 0, shard}; at.m < order_.first_tile[shard + 1]; ++at.m) {
      for (at.n = 0; at.n < order_.tiles_n; ++at.n) {
        const int64_t row = first_row(order_, at), col = at.n * grid_.cols;
        size_t tried = 0;  // neighbours mostly lie in one
        for (; tried < list.size() && !list[hint].area.has(row, col); ++tried) hint = (hint + 1) % list.size();
        if (tried == list.size())
          return base::error(Errc::bad_schedule,
                             "schedule {}: no part computes or carries row {} column {}; wanted: one for each tile",
                             b_.schedule_.family, row, col);
        (*rectangle)[number(at)] = static_cast<int32_t>(hint);
        for (const int32_t piece : list[hint].pieces) {
          Piece& one = pieces_[static_cast<size_t>(piece)];
          const bool leaves = one.whole.link_bytes > 0;
          if (!is_counted_ && leaves != ((shard == rank_) == is_carried))
            return base::error(Errc::bad_schedule,
                               "{}: wanted tiles of peers stored to them, own sums carried to peers",
                               instance(one.instance).id(b_.schedule_));
          ++one.tiles;
        }
      }
    }
  }
  return {};
}

/// A node of a tile; what the cluster did last comes before it.
uint32_t ScatterKernel::add_node(Piece* piece, const Work& work, Cluster* cluster) {
  const uint32_t id = b_.add_node(rank_);
  Node& node = b_.graph_.nodes[id];
  node.part_of = node.jitter = piece->instance;
  b_.set_flow(node, work);
  node.intensity = 1.0 / grid_.slots;
  b_.connect(cluster->last, id);
  return id;
}

/// Bytes at the rate of one cluster; of all clusters together no more than `rates.all` of the `capacity` of `kept`.
uint32_t ScatterKernel::add_moving(Piece* piece, Work work, const Rates& rates, Kept kept, double capacity,
                                   Cluster* cluster) {
  work.flow_us = static_cast<double>(work.amount) / rates.alone * 1e-3;
  const uint32_t id = add_node(piece, work, cluster);
  Node& node = b_.graph_.nodes[id];
  node.intensity = rates.alone / rates.all;
  for (size_t i = 0; i < node.num_demands; ++i)
    if (node.demands[i].resource == resource_of(rank_, kept))
      node.demands[i].per_unit *= std::max(1.0, capacity / rates.all);
  return id;
}

/// Adds the store of a tile.
void ScatterKernel::add_store(Piece* piece, Cluster* cluster) {
  Work work;
  work.link_bytes = work.peer_memory_bytes = share_of(piece->whole.link_bytes, piece->tiles, piece->done++);
  work.amount = static_cast<uint64_t>(work.link_bytes);
  work.to = piece->whole.to;
  work.load = spec::Load::epi_store;
  const uint32_t id = add_moving(piece, work, store_, Kept::egress, b_.machine_.link.egress_GBps.value, cluster);
  b_.connect(cluster->stored, id);
  b_.connect(id, piece->join);
  cluster->stored = id;
}

void ScatterKernel::add_product(const TileCoord& at, Cluster* cluster) {
  const auto rectangle = static_cast<size_t>(computed_at_[number(at)]);
  Piece* const piece = &pieces_[static_cast<size_t>(computed_[rectangle].pieces.front())];
  Work work;
  work.amount = static_cast<uint64_t>(2 * grid_.rows * grid_.cols * depth_);
  work.flow_us = b_.tile_us(grid_, depth_);
  const uint32_t id = add_node(piece, work, cluster);
  if (b_.machine_.gemm.sustained_TFLOPs.value > 0) b_.graph_.nodes[id].demand(resource_of(rank_, Kept::tensor), 1);
  b_.connect(id, done_[rectangle]);
  cluster->last = id;
  if (piece->whole.link_bytes == 0) return;
  b_.add_waits(id, instance(piece->instance), GraphBuilder::Waits::all);
  add_store(piece, cluster);
}

/// Reads and writes so many tiles, once `piece` may.
void ScatterKernel::add_adding(Piece* piece, int tiles, Cluster* cluster) {
  Work work;
  work.memory_bytes = tiles * tile_bytes_;
  work.amount = static_cast<uint64_t>(work.memory_bytes);
  work.load = spec::Load::reduce;
  b_.count_bytes(rank_, work);
  const uint32_t id = add_moving(piece, work, add_, Kept::memory, b_.machine_.memory.hbm_GBps.value, cluster);
  b_.add_waits(id, instance(piece->instance), GraphBuilder::Waits::all);
  b_.connect(id, piece->join);
  cluster->last = id;
}

/// The sum of an own tile, which peers may want too.
void ScatterKernel::add_sum(const TileCoord& at, Cluster* cluster) {
  const auto rectangle = static_cast<size_t>(computed_at_[number(at)]);
  add_adding(&pieces_[static_cast<size_t>(computed_[rectangle].sum)], order_.size + 1, cluster);
  b_.connect(done_[rectangle], cluster->last);
  if (carried_.empty()) return;
  for (const int32_t sent : carried_[static_cast<size_t>(carried_at_[number(at)])].pieces)
    add_store(&pieces_[static_cast<size_t>(sent)], cluster);
}

/// A peer's sum, from where the peer put it into the result.
void ScatterKernel::add_copy(const TileCoord& at, Cluster* cluster) {
  for (const int32_t taken : carried_[static_cast<size_t>(carried_at_[number(at)])].pieces)
    add_adding(&pieces_[static_cast<size_t>(taken)], 2, cluster);
}

/// The time of an item by itself.
double ScatterKernel::us_of(overlace::Work kind) const {
  if (kind == overlace::Work::product) return b_.tile_us(grid_, depth_);
  const int tiles = kind == overlace::Work::sum ? order_.size + 1 : 2;
  return static_cast<double>(tiles * tile_bytes_) / add_.alone * 1e-3;
}

/// What clusters move: stores, and operands of sums.
void ScatterKernel::set_rates(const std::vector<GraphBuilder::Area>& areas) {
  const spec::Machine& machine = b_.machine_;
  const spec::Curve& GBps = machine.transport.tma_GBps;
  store_.alone = GBps.empty() ? machine.link.egress_GBps.value : GBps.at(spec::kFusedTileSms);
  store_.all = GBps.empty() ? store_.alone : GBps.at(machine.sms);
  int64_t element_bytes = 1;
  for (const GraphBuilder::Area& area : areas)
    if (const int64_t elements = area.rows * area.cols; elements > 0)
      element_bytes = std::max(element_bytes, area.slabs.front().whole.moved_bytes / elements);
  tile_bytes_ = grid_.rows * grid_.cols * element_bytes;
  const double wave_bytes = static_cast<double>(grid_.slots) * static_cast<double>(tile_bytes_);
  add_.all = wave_bytes / std::max(spec::reduce_us(machine, wave_bytes), 1e-9) * 1e-3;
  add_.alone = std::min(add_.all, spec::kFusedTileSms * machine.gemm.sm_stream_GBps.value);
  if (add_.alone <= 0) add_.alone = add_.all;
}

/// Own tiles are stored, then summed by the part that depends on them.
base::Status ScatterKernel::add_areas(const std::vector<GraphBuilder::Area>& areas, const std::vector<int>& sums,
                                      uint32_t enter, uint32_t leave) {
  std::map<int, size_t> computed_by;  // instance -> rectangle
  for (const GraphBuilder::Area& area : areas) {
    if (area.slabs.size() != 1)
      return base::error(Errc::bad_schedule, "{}: a part of tiles that others add to, wanted all columns of A at once",
                         instance(area.slabs.front().instance).id(b_.schedule_));
    const GraphBuilder::Slab& slab = area.slabs.front();
    computed_by[slab.instance] = computed_.size();
    computed_.push_back({area, {static_cast<int32_t>(pieces_.size())}});
    pieces_.push_back({slab.instance, slab.join, slab.whole});
    depth_ = std::max(depth_, slab.depth);
    const uint32_t done = b_.add_node(rank_);
    b_.connect(enter, done);
    b_.connect(done, slab.join);
    done_.push_back(done);
  }
  for (const int index : sums) {
    const std::vector<int>& deps = instance(index).deps;
    const auto tiles = deps.size() == 1 ? computed_by.find(deps[0]) : computed_by.end();
    if (tiles == computed_by.end())
      return base::error(Errc::bad_schedule, "{}: depends on {} parts, wanted: on the one whose tiles it sums",
                         instance(index).id(b_.schedule_), deps.size());
    computed_[tiles->second].sum = static_cast<int32_t>(pieces_.size());
    add_piece(index, enter, leave);
  }
  for (const Rectangle& one : computed_) {
    const Piece& piece = pieces_[static_cast<size_t>(one.pieces.front())];
    if (is_counted_ && piece.whole.to != rank_)
      return base::error(Errc::bad_schedule, "{}: stores to rank {} tiles that copies send; wanted: to its own, {}",
                         instance(piece.instance).id(b_.schedule_), piece.whole.to, rank_);
    if (!is_counted_ && piece.whole.to == rank_ && one.sum < 0)
      return base::error(
          Errc::bad_schedule,
          "{}: own tiles that no part sums; wanted: a part that depends on them and adds what peers send",
          instance(piece.instance).id(b_.schedule_));
  }
  return {};
}

base::Status ScatterKernel::add(const std::vector<GraphBuilder::Area>& areas, const std::vector<int>& sums,
                                const std::vector<int>& copies, uint32_t enter, uint32_t leave) {
  base::Result<std::vector<Rectangle>> carried = carried_of(copies, enter, leave);
  if (!carried.ok()) return carried.status();
  carried_ = std::move(*carried);
  OVERLACE_TRY(add_areas(areas, sums, enter, leave));
  OVERLACE_TRY(lay_out(computed_, &computed_at_));
  if (!carried_.empty()) OVERLACE_TRY(lay_out(carried_, &carried_at_));

  for (const Piece& piece : pieces_)
    if (!instance(piece.instance).sets.empty())
      b_.graph_.nodes[piece.join].post_ps = ps_of_us(b_.machine_.latency.wait_us.value);
  set_rates(areas);
  const int32_t clusters = std::min(grid_.slots, count_tiles(order_));
  const WorkOrder work =
      is_counted_ ? make_product_order(order_) : make_work_order(order_, std::max(clusters, 1), !carried_.empty());
  std::vector<Cluster> states(static_cast<size_t>(clusters), {enter, enter});
  using Free = std::pair<double, int32_t>;  // when, who
  std::priority_queue<Free, std::vector<Free>, std::greater<>> free;
  for (int32_t cluster = 0; cluster < clusters; ++cluster) free.push({0, cluster});
  std::array<std::array<double, kMaxBands>, kWorks> ends{};  // of what was drawn
  for (int32_t number = 0; number < count_items(work); ++number) {
    const auto [kind, at] =
        is_counted_ ? WorkItem{overlace::Work::product, tile_at(order_, number)} : item_of(order_, work, number);
    const auto [us, cluster] = free.top();
    free.pop();
    // All ranks are alike here: sums of a band begin behind its products, copies behind its sums.
    const auto band = is_counted_ ? 0 : static_cast<size_t>((at.m - order_.first_tile[at.shard]) / order_.band);
    const double begin = kind == overlace::Work::product ? us : std::max(us, ends[static_cast<size_t>(kind) - 1][band]);
    double& end = ends[static_cast<size_t>(kind)][band];
    end = std::max(end, begin + us_of(kind));
    free.push({begin + us_of(kind), cluster});
    Cluster* const state = &states[static_cast<size_t>(cluster)];
    kind == overlace::Work::product ? add_product(at, state)
    : kind == overlace::Work::sum   ? add_sum(at, state)
                                    : add_copy(at, state);
  }
  return {};
}

base::Status GraphBuilder::add_scatter(int rank, const std::vector<int>& tiles, const std::vector<int>& sums,
                                       const std::vector<int>& copies, uint32_t enter, uint32_t leave) {
  const base::Result<Grid> grid = grid_of();
  if (!grid.ok()) return grid.status();
  constexpr double kNodesPerTile = 3;  // a product or a sum, its stores, copies
  const bool is_counted = spec::is_tracked(schedule_);
  base::Result<TileOrder> order =
      order_of(is_counted ? TileOrderKind::own_last : TileOrderKind::woven, rank, *grid, kNodesPerTile);
  if (!order.ok()) return order.status();
  if (is_counted)
    order->band = spec::chunk_groups(*order, parameter("groups", 1)).rows;
  else
    (void)spec::woven_groups(&*order, parameter("groups", 1), !copies.empty());
  const base::Result<std::vector<Area>> areas = areas_of(rank, tiles, enter, leave);
  if (!areas.ok()) return areas.status();
  return ScatterKernel(*this, rank, *order, *grid).add(*areas, sums, copies, enter, leave);
}

}  // namespace overlace::sim
