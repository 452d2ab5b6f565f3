// Who happens before whom, over all ranks and several epochs of a schedule. Internal to check().
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "src/spec/check.h"
#include "src/spec/expand.h"
#include "src/spec/items.h"

namespace overlace::spec {

/// All ranks' expansions for one team size.
struct AllRanks {
  const Schedule* schedule;
  std::vector<Expansion> ranks;
  /// For each rank's instances that are drawn as items: the places of the first and the last one in its list, the ends
  /// of which lie behind their beginnings. Filled by list_items().
  std::vector<std::vector<std::optional<std::pair<int64_t, int64_t>>>> drawn = {};
  base::Status list_items();
  std::optional<std::pair<int64_t, int64_t>> items_of(int rank, int instance) const {
    if (drawn.empty()) return std::nullopt;
    return drawn[static_cast<size_t>(rank)][static_cast<size_t>(instance)];
  }
  int size() const { return static_cast<int>(ranks.size()); }
  const Instance& at(int rank, int instance) const {
    return ranks[static_cast<size_t>(rank)].instances[static_cast<size_t>(instance)];
  }
  std::string id(int rank, int instance) const { return at(rank, instance).id(*schedule); }
  int64_t num_instances() const;
  /// Largest depth: a call uses copy number call % depth of every buffer and of every signal word.
  int depth() const;
};

/// Findings of one run of check(), at most kMaxFindings per code.
class Findings {
 public:
  explicit Findings(std::vector<Finding>* out) : out_(out) {}
  void error(std::string_view code, const std::string& task, int rank, std::string text) {
    add(code, true, task, rank, std::move(text));
  }
  void warn(std::string_view code, const std::string& task, int rank, std::string text) {
    add(code, false, task, rank, std::move(text));
  }
  int num_errors() const { return num_errors_; }

 private:
  void add(std::string_view code, bool is_error, const std::string& task, int rank, std::string text);
  std::vector<Finding>* out_;
  std::map<std::string, int, std::less<>> counts_;
  int num_errors_ = 0;
};
inline constexpr int kMaxFindings = 8;

class Graph {
 public:
  /// Every graph has the edges of dependencies, signals and collectives. `progress` also lets instances of a lane
  /// follow each other, as whoever serves a lane alone takes them, and parts of a list of items as one worker draws
  /// them. `happens_before` does so too, except among the parts of a fused kernel, which its CTAs run side by side:
  /// parts begin behind what stands before the kernel in their lane and end before what stands behind it. A part that
  /// adds to what an earlier one of its lane has written follows it, because a tile's sums stay with the CTA that
  /// computes it.
  enum Edges { deps_and_signals, progress, happens_before };
  Graph(const AllRanks& team, int epochs, Edges edges);
  /// Instances that wait for one another, empty if there is no such circle: (rank, instance).
  std::vector<std::pair<int, int>> circle() const;
  /// Instance a of epoch 0 has completed before instance b of `epoch` starts. Precondition: no circle, happens_before.
  bool before(std::pair<int, int> a, std::pair<int, int> b, int epoch) const;
  /// Bytes that a graph of happens_before takes to say what is behind each part of a kernel.
  static int64_t bytes_of_parts(const AllRanks& team, int epochs);
  /// (rank, instance, is_start) of epoch 0 in an order in which they may happen; a collective has a start and an end.
  struct Step {
    int rank, instance;
    bool is_start;
  };
  std::vector<Step> steps() const;

 private:
  static constexpr int kNoChain = -1;  // of a part, which has no place in its lane
  struct Node {
    int rank = 0, instance = 0, epoch = 0;  // instance -1: the end of an epoch on a rank
    bool is_start = false;
    int chain = kNoChain, position = 0;
    int part = -1;  // of epoch 0: its number among the parts of all ranks
    std::vector<int> preds = {};
  };
  class Lanes;
  bool runs_beside_its_lane(int rank, int instance) const;
  int start_of(int rank, int instance, int epoch) const;
  int end_of(int rank, int instance, int epoch) const { return ends_[slot(rank, instance, epoch)]; }
  size_t slot(int rank, int instance, int epoch) const;
  void add_nodes();
  void add_signal_edges();
  void add_collective_edges();
  void sort();
  void add_clocks();
  void add_parts_before();

  const AllRanks& team_;
  const int epochs_;
  const Edges edges_;
  std::vector<size_t> first_;  // index of a rank's first instance
  size_t per_epoch_ = 0;
  std::vector<int> ends_, joins_;
  std::vector<Node> nodes_;
  std::vector<int> order_;
  int num_chains_ = 0;
  std::vector<int32_t> clocks_;         // [node][chain]
  int num_parts_ = 0;                   // of epoch 0
  std::vector<uint64_t> parts_before_;  // [node][part / 64]: those of epoch 0 that have completed before, as bits
};

/// Whether two boxes of one buffer of one rank, neither empty, overlap.
bool overlap(const Box& a, const Box& b);
/// "a of rank 0 -> b of rank 1 -> ..."
std::string names_of(const AllRanks& team, const std::vector<std::pair<int, int>>& circle);
std::string box_text(const Schedule& schedule, const Box& box);

void check_extents(const AllRanks& team, Findings* out);                                                // S2
void check_scopes(const AllRanks& team, Findings* out);                                                 // S4, S7
void check_counts(const AllRanks& team, Findings* out);                                                 // S4
void check_residency(const AllRanks& team, const Machine& machine, const Graph& graph, Findings* out);  // S7
void check_queues(const AllRanks& team, const Machine& machine, Findings* out);                         // S8
/// Accesses to rows that meet, taken two by two: what S5, S6 and S10 look at.
int64_t num_pairs(const AllRanks& team);
void check_races(const AllRanks& team, const Graph& graph, Findings* out);          // S5
void check_reuse(const AllRanks& team, const Graph& graph, Findings* out);          // S6
void check_order_of_sums(const AllRanks& team, const Graph& graph, Findings* out);  // S10
void check_coverage(const AllRanks& team, const Graph& graph, Findings* out);       // S9
void check_machine(const AllRanks& team, const Machine& machine, Findings* out);    // S11, S12

}  // namespace overlace::spec
