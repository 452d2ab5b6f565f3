// Evaluates a schedule's template, rank by rank. Internal to expand.cc.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "src/base/status.h"
#include "src/spec/expand.h"
#include "src/spec/expr.h"

namespace overlace::spec {

/// With the value that it had last. Inner loops' variables have higher slots: while the one of the highest slot that
/// enters it stays as it is, so do the others, and the value holds.
struct RankExpr {
  BoundExpr expr;
  int slot = 0;  // the highest of a loop's variable; 0: none, it holds for the rank
  mutable uint64_t stamp = 0;
  mutable int64_t value = 0;
  const std::string& text() const { return expr.text(); }
};

struct BoundLoop {
  int slot;
  RankExpr begin, end;
};
struct BoundRegion {
  int buffer;
  RankExpr at;
  std::vector<std::pair<RankExpr, RankExpr>> dims;
  std::optional<BoundLoop> each;
};
struct BoundWait {
  int signal;
  RankExpr slot, from, at_least;
  std::optional<BoundLoop> each;
  bool previous;
};
struct BoundSet {
  int signal;
  RankExpr slot, at;
  int64_t add;
  std::optional<BoundLoop> each;
};
struct BoundTask {
  const Task* task;
  std::vector<BoundLoop> loops;
  RankExpr queue, order;
  std::vector<BoundRegion> reads, writes;
  std::vector<BoundWait> waits;
  std::vector<BoundSet> sets;
};

inline constexpr int64_t kMaxInstances = 100'000;
inline constexpr int64_t kMaxItems = 1'000'000;  // regions, waits and sets of a rank; dependencies; signal words

class Expander {
 public:
  Expander(const Schedule& schedule, int rank, int ranks)
      : schedule_(schedule), rank_(rank), ranks_(ranks), symbols_(schedule.tables) {}

  /// What was bound for a rank holds for the next one too.
  void move_to(int rank);
  /// Everything but deps, order of issue and adds; instances come task by task.
  base::Status expand(Expansion* out);
  /// After expand(): what this rank adds at rank `at`, into the adds table of `out`, the expansion of `at`.
  base::Status add_sets(Expansion* out, int at);
  /// Regions, waits and sets so far.
  int64_t num_items() const { return num_items_; }
  /// [first, last) of the instances of each task, after expand().
  const std::vector<std::pair<int, int>>& task_ranges() const { return ranges_; }
  /// After expand(): whether the template proves that every rank's instances are rank 0's with all ranks turned: the
  /// same loops, lanes, sizes of boxes, slots and counts, and peers at the same distance. Where boxes begin may differ,
  /// except in GEMMs of several boxes. False where that cannot be seen.
  bool are_ranks_alike() const;

 private:
  void set(int slot, int64_t value);
  void bind_names();
  void name_rank();
  void bind_consts();
  void shapes(Expansion* out);
  RankExpr bind(const Expr& expr, std::string_view what);
  std::optional<BoundLoop> bind_each(const std::optional<Loop>& each);
  BoundLoop bind_loop(const Loop& loop);
  void drop(const std::optional<Loop>& each);
  BoundRegion bind_region(const Region& region);
  BoundTask bind_task(const Task& task);
  void drop_loops(const Task& task);
  int signal_index(std::string_view name);
  int64_t eval(const RankExpr& expr);
  template <class Visit>
  void for_each(const std::optional<BoundLoop>& each, Visit visit);
  template <class Visit>
  void for_points(const BoundTask& task, size_t depth, std::vector<int64_t>* point, const Visit& visit);
  void emit(const BoundTask& task, int task_index, const std::vector<int64_t>& point, Expansion* out);
  Box resolve(const BoundRegion& region, const Expansion& out);
  int peer(const RankExpr& expr, std::string_view what);
  int64_t checked_slot(const RankExpr& expr, int signal);
  void fail(std::string_view code, const std::string& why);
  bool ok() const { return status_.ok(); }

  const Schedule& schedule_;
  int rank_;
  const int ranks_;
  Symbols symbols_;
  bool is_bound_ = false;
  int num_fixed_ = 0;  // slots of names that are no loop variables
  uint64_t clock_ = 0;
  std::vector<uint64_t> stamps_ = {1};            // by slot: when its variable changed; of 0: when the rank did
  std::vector<std::pair<int, RankExpr>> consts_;  // slot, value; each behind what it needs
  std::vector<RankExpr> extents_, slot_counts_;   // of buffers, dimension by dimension; of signals
  std::vector<BoundTask> tasks_;
  std::vector<int64_t> slots_;  // words per sender, per signal
  std::vector<std::pair<int, int>> ranges_;
  std::string where_;  // task (with loop values), for messages
  const BoundTask* task_ = nullptr;
  int64_t num_points_ = 0, num_items_ = 0;
  base::Status status_;
};

}  // namespace overlace::spec
