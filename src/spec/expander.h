// Evaluates a schedule's template for one rank. Internal to expand.cc.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "src/base/status.h"
#include "src/spec/expand.h"
#include "src/spec/expr.h"

namespace overlace::spec {

struct BoundLoop {
  int slot;
  BoundExpr begin, end;
};
struct BoundRegion {
  int buffer;
  BoundExpr at;
  std::vector<std::pair<BoundExpr, BoundExpr>> dims;
  std::optional<BoundLoop> each;
};
struct BoundWait {
  int signal;
  BoundExpr slot, from, at_least;
  std::optional<BoundLoop> each;
  bool previous;
};
struct BoundSet {
  int signal;
  BoundExpr slot, at;
  int64_t add;
  std::optional<BoundLoop> each;
};
struct BoundTask {
  const Task* task;
  std::vector<BoundLoop> loops;
  BoundExpr queue, order;
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

  /// Everything but deps, order of issue and adds; instances come task by task.
  base::Status expand(Expansion* out);
  /// What this rank adds at rank `at`: into the adds table of `out`, the expansion of `at`.
  base::Status add_sets(Expansion* out, int at);
  /// Regions, waits and sets so far.
  int64_t num_items() const { return num_items_; }
  /// [first, last) of the instances of each task, after expand().
  const std::vector<std::pair<int, int>>& task_ranges() const { return ranges_; }

 private:
  void bind_names();
  void bind_consts();
  void shapes(Expansion* out);
  BoundExpr bind(const Expr& expr, std::string_view what);
  std::optional<BoundLoop> bind_each(const std::optional<Loop>& each);
  BoundLoop bind_loop(const Loop& loop);
  void drop(const std::optional<Loop>& each);
  BoundRegion bind_region(const Region& region);
  BoundTask bind_task(const Task& task, bool sets_only);
  void drop_loops(const Task& task);
  int signal_index(std::string_view name);
  int64_t eval(const BoundExpr& expr);
  template <class Visit>
  void for_each(const std::optional<BoundLoop>& each, Visit visit);
  template <class Visit>
  void for_points(const BoundTask& task, size_t depth, std::vector<int64_t>* point, const Visit& visit);
  void emit(const BoundTask& task, int task_index, const std::vector<int64_t>& point, Expansion* out);
  Box resolve(const BoundRegion& region, const Expansion& out);
  int peer(const BoundExpr& expr, std::string_view what);
  int64_t checked_slot(const BoundExpr& expr, int signal);
  void fail(std::string_view code, const std::string& why);
  bool ok() const { return status_.ok(); }

  const Schedule& schedule_;
  const int rank_, ranks_;
  Symbols symbols_;
  std::vector<int64_t> slots_;  // words per sender, per signal
  std::vector<std::pair<int, int>> ranges_;
  std::string where_;  // task (with loop values), for messages
  const BoundTask* task_ = nullptr;
  int64_t num_points_ = 0, num_items_ = 0;
  base::Status status_;
};

}  // namespace overlace::spec
