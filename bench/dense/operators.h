// Schedules of one dense operator as competitors: what they run, and when their output is right.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "bench/common/protocol.h"
#include "bench/dense/workload.h"
#include "overlace/context.h"

namespace overlace::bench {

class Operators final : public Subject {
 public:
  /// Names as in bench/dense/main.cc.
  /// With `graphs` every call is the replay of one that was captured; `chains`: of many at once, over all operand sets.
  Operators(const Case& c, Workload& workload, Channel& channel, Crew& crew, Device* graphs, bool chains,
            std::vector<std::string> names)
      : case_(c),
        workload_(workload),
        channel_(channel),
        crew_(crew),
        graphs_(graphs),
        chains_(chains),
        names_(std::move(names)) {}
  /// Collective, before entrants(): what `auto` chooses by. Where there is no machine file: the rates of the emulated
  /// link and of the whole GEMM on the slowest rank.
  base::Status open_context(Runtime& runtime);
  /// In the order of the names. Those that the operator or the machine does not have are `unsupported`.
  std::vector<Entrant> entrants();
  /// Bits equal to those of the first competitor with an output.
  bool same_bits(size_t which) const { return same_bits_[which]; }
  const spec::Schedule& schedule(size_t which) const { return schedules_[which]; }

  base::Status enqueue(size_t which, int turn) override;
  int calls_per_launch() const override;
  base::Result<std::string> verify(size_t which, Check* check) override;

 private:
  base::Result<double> measure_flops();
  /// Puts the planner's candidates where the names say `candidates`, each name once.
  void expand_candidates();
  base::Status resolve(const std::string& name, spec::Schedule* schedule, std::string* reason);
  base::Status call(size_t which, int turn);
  /// Graphs of a competitor, one per operand set, or one chain. A call before allocates what a capture must not.
  base::Status capture(size_t which);
  /// The same on all ranks: empty if it holds on all of them.
  base::Result<std::string> agree(bool good, const std::string& complaint);
  base::Result<std::string> compare(size_t which);

  const Case& case_;
  Workload& workload_;
  Channel& channel_;
  Crew& crew_;
  Device* graphs_;  // null: calls are queued one by one
  bool chains_;
  std::optional<Context> context_;
  std::vector<std::string> names_;
  std::vector<spec::Schedule> schedules_;
  std::vector<bool> same_bits_;
  std::vector<std::vector<std::function<base::Status()>>> replays_;  // by competitor and operand set
  std::optional<size_t> first_;                                      // whose output the others are compared with
  Check baseline_;
};

}  // namespace overlace::bench
