// All ranks' instances of a schedule as one graph of nodes: work, what must be before it, what it tells. Internal.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "overlace/sim.h"
#include "src/sim/resource/fluid.h"
#include "src/sim/schedule/costs.h"
#include "src/spec/operators.h"
#include "src/spec/tile_order_pod.h"

namespace overlace::sim {

/// What a rank has of everything that flows share.
enum class Kept : uint32_t { egress, ingress, memory, tensor, core };
inline constexpr uint32_t kKeptPerRank = 5;
inline uint32_t resource_of(int rank, Kept kept) {
  return static_cast<uint32_t>(rank) * kKeptPerRank + static_cast<uint32_t>(kept);
}

/// Once ready: launch_ps, then start_ps, then the flow, then post_ps; then the edges and sets.
struct Node {
  int rank = 0;
  int instance = -1;    // of the rank's expansion, or none
  int part_of = -1;     // a piece of the instance with this index: its span grows with the piece
  int collective = -1;  // starts when all of its members have been launched
  int jitter = -1;      // key of its noise; -1: none
  Time launch_ps = 0, start_ps = 0, post_ps = 0;
  uint64_t amount = 0;
  int to = -1;  // gets link_bytes, and keeps peer_memory_bytes
  int64_t link_bytes = 0, memory_bytes = 0, peer_memory_bytes = 0, moved_bytes = 0;
  double flops = 0;
  double most_per_ps = 0, weight = 1, intensity = 1;
  uint8_t num_demands = 0, num_presences = 0;
  std::array<Demand, kMaxDemands> demands{};
  std::array<Presence, kMaxPresences> presences{};
  uint32_t first_edge = 0, num_edges = 0, first_wait = 0, num_waits = 0, first_set = 0, num_sets = 0;
  int preds = 0;
  void demand(uint32_t resource, double per_unit) {
    if (per_unit > 0) demands[num_demands++] = {resource, per_unit};
  }
  double alone_us() const {
    return us_of_ps(launch_ps + start_ps + post_ps) +
           (amount > 0 ? static_cast<double>(amount) / most_per_ps * 1e-6 : 0);
  }
};

struct Edge {
  uint32_t to;
  Time delay;
};
/// `word` as in Graph::word.
struct WaitFor {
  uint32_t node, word;
  int64_t at_least;
  bool previous;
};
struct Add {
  uint32_t node, word;
  int64_t add;
  Time delay;
};

struct Graph {
  const spec::Schedule* schedule = nullptr;
  int ranks = 1, depth = 1;
  bool is_gpu = false;
  /// One where rank 0 stands for all: what it sends to a peer it also gets, at the same time, from the rank that has it
  /// as that peer.
  std::vector<spec::Expansion> expansions;
  std::vector<Node> nodes;
  std::vector<Edge> edges;                                // by node
  std::vector<WaitFor> waits;                             // by node
  std::vector<Add> adds;                                  // by node
  std::vector<uint32_t> begins, ends;                     // by rank: the nodes of a call's begin and end
  std::vector<uint32_t> first_of_rank;                    // nodes of rank r: first_of_rank[r] to first_of_rank[r + 1]
  std::vector<int64_t> adds_per_epoch;                    // by word
  std::vector<std::vector<uint32_t>> members;             // of collectives
  std::vector<std::pair<uint32_t, std::string>> kernels;  // by rank: leaving node of its fused kernel, lane
  std::vector<uint32_t> kernel_enters;
  std::vector<RankBytes> static_bytes;  // of a call
  double bound_us = 0, serial_us = 0, host_us = 0;
  uint32_t words_per_pair = 0;

  int num_simulated() const { return static_cast<int>(expansions.size()); }
  bool is_folded() const { return num_simulated() < ranks; }
  /// Whose resources and words stand for those of `rank`.
  int home(int rank) const { return is_folded() ? 0 : rank; }
  uint32_t word(int receiver, uint32_t id, int from) const {
    if (is_folded()) from = (from - receiver + ranks) % ranks;
    return (static_cast<uint32_t>(home(receiver)) * words_per_pair + id) * static_cast<uint32_t>(ranks) +
           static_cast<uint32_t>(from);
  }
  std::vector<uint32_t> first_id;  // by signal
  /// "arrived[3]"
  std::string word_name(uint32_t word) const;
  std::string lane_name(const Node& node) const;
  const spec::Instance& instance(const Node& node) const {
    return expansions[static_cast<size_t>(node.rank)].instances[static_cast<size_t>(node.instance)];
  }
};

/// `may_fold`: of rank 0 alone where all ranks are alike (spec::expand_alike).
base::Result<Graph> build_graph(const spec::Schedule& schedule, const spec::Machine& machine, bool may_fold = false);
base::Result<SimResult> run_graph(const Graph& graph, const spec::Machine& machine, const SimOptions& options);

/// Collects nodes, then lays edges, waits and adds out by node. Internal to build_graph.
class GraphBuilder {
 public:
  GraphBuilder(const spec::Schedule& schedule, const spec::Machine& machine, bool may_fold)
      : schedule_(schedule), machine_(machine), may_fold_(may_fold) {
    graph_.schedule = &schedule;
  }
  base::Result<Graph> build();

 private:
  struct LooseEdge {
    uint32_t from, to;
    Time delay;
  };
  friend class ScatterKernel;  // scatter.cc
  /// An instance of a fused kernel, one of those that compute one rectangle of C.
  struct Slab {
    int instance;
    uint32_t join;  // completes with the last tile
    int64_t depth;  // columns of A
    Work whole;
  };
  struct Area {
    int64_t row = 0, rows = 0, col = 0, cols = 0;
    int64_t depth = 0;
    std::vector<Slab> slabs = {};
    bool has(int64_t r, int64_t c) const { return r >= row && r < row + rows && c >= col && c < col + cols; }
  };
  struct Grid {
    int64_t rows, cols;  // of a tile
    int32_t slots;       // tiles at a time
  };
  base::Status expand();
  base::Status add_rank(int rank);
  base::Status add_instance(int rank, int index, uint32_t node);
  base::Status add_kernel(int rank, const std::vector<int>& parts, uint32_t enter, uint32_t leave);
  base::Status add_chain_of_parts(int rank, const std::vector<int>& parts, uint32_t enter, uint32_t leave);
  void add_idle(int rank, const std::vector<int>& parts, uint32_t enter, uint32_t leave);
  base::Result<std::vector<Area>> areas_of(int rank, const std::vector<int>& parts, uint32_t enter, uint32_t leave);
  int64_t parameter(const char* name, int64_t otherwise) const;
  base::Result<Grid> grid_of() const;
  base::Result<TileOrder> order_of(TileOrderKind kind, int rank, const Grid& grid, double nodes_per_tile) const;
  /// How long one tile of a fused kernel takes.
  double tile_us(const Grid& grid, int64_t depth) const;
  uint32_t add_chain(int rank, Area& area, int32_t tiles, const Grid& grid, uint32_t before);
  base::Status add_tiles(int rank, const std::vector<int>& parts, uint32_t enter, uint32_t leave);
  base::Status add_scatter(int rank, const std::vector<int>& tiles, const std::vector<int>& sums,
                           const std::vector<int>& copies, uint32_t enter, uint32_t leave);
  void add_push(int rank, const std::vector<int>& copies, uint32_t enter, uint32_t leave);
  std::vector<std::vector<int>> streams_of(int rank) const;
  uint32_t add_node(int rank);
  void connect(uint32_t from, uint32_t to, double delay_us = 0);
  double crossing_us(const spec::Instance& to) const;
  enum class Waits { all, credits, data };  // credits: those that count up to the end of the epoch before
  void add_waits(uint32_t node, const spec::Instance& in, Waits which);
  void add_sets(uint32_t node, const spec::Instance& in);
  void count_bytes(int rank, const Work& work);
  void set_flow(Node& node, const Work& work);
  void add_bounds();
  void lay_out();
  const spec::Task& task_of(const spec::Instance& in) const { return schedule_.tasks[static_cast<size_t>(in.task)]; }
  bool is_part(const spec::Instance& in) const { return machine_.is_gpu && spec::is_part(task_of(in)); }

  const spec::Schedule& schedule_;
  const spec::Machine& machine_;
  const bool may_fold_;
  Graph graph_;
  std::vector<LooseEdge> edges_;
  std::vector<uint32_t> node_of_;    // by instance of the rank that is added
  std::map<int, uint32_t> join_of_;  // by part of that rank's kernel: the node at which it ends
  std::map<std::pair<int, std::vector<int64_t>>, int> collectives_;
  std::vector<double> flops_, host_;  // by rank
};

}  // namespace overlace::sim
