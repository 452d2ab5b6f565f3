// The context: one machine and one planner for all ranks of a runtime. It decides what `auto` means in C++, C, Python
// and the command line.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "overlace/machine.h"
#include "overlace/plan.h"
#include "overlace/runtime.h"

namespace overlace {

#pragma GCC visibility push(default)  // exported by liboverlace.so

/// Options of a context.
struct ContextOptions {
  /// Name of a shipped machine, a file that ends in .json, or what is known of the link (bytes per second, direction
  /// and rank) and the GEMM: "50GB/s,2TFLOP/s". Empty: OVERLACE_MACHINE, else what is found.
  std::string machine = {};
  /// Rates that the caller measured, used if no file is found. Rank 0's value counts for all ranks, as with `machine`.
  std::optional<spec::MachineRates> rates = {};
};

/// A cheap handle; copies share what was planned. Threads may share it.
class Context {
 public:
  /// Opens a context. Collective. Rank 0 finds the machine for all ranks, in this order: `options.machine`;
  /// OVERLACE_MACHINE; the newest calibrated file of these GPUs in the folder of machines (`overlace calibrate`); the
  /// file shipped for these GPUs, or for others; `options.rates`; nothing, and then every plan is `library`. Files do
  /// not apply to a team on several hosts or to an emulated link, and files of GPUs do not apply to CPU ranks; they are
  /// skipped there. Throws InvalidArgument on all ranks if the machine that was asked for cannot be read, and
  /// Unsupported if OVERLACE_TUNE is first_use on rank 0 and the machine has no costs to choose candidates by. Keeps no
  /// reference to the runtime.
  static Context open(Runtime& runtime, const ContextOptions& options = {});

  const spec::Machine& machine() const;
  /// Says where the machine comes from: "h200x2, shipped for NVIDIA H200 x 2".
  const std::string& machine_origin() const;
  /// Returns the schedule for the problem, which is equal on all ranks: what OVERLACE_PLAN_CACHE had cached when
  /// rank 0 opened this (from tier probe, else simulation), else what the planner chooses in tier recurrence.
  /// `heap_bytes` limits what the schedule may take of each rank's symmetric heap; 0: no limit. With OVERLACE_EXPLAIN=1
  /// rank 0 writes the reason to stderr, once per problem. Throws ScheduleError if no schedule fits the problem.
  std::shared_ptr<const plan::Plan> plan(const spec::OpSpec& op, uint64_t heap_bytes = 0) const;
  /// Returns the problems for which plan() was asked without a limit on the heap, the latest 4096, the latest first.
  std::vector<spec::OpSpec> met() const;
  /// Makes plan() return these plans of tier probe for all rows of their buckets (`overlace::tune` calls it). All ranks
  /// keep the same plans. `kept_in` says in their reasons where they come from.
  void keep(const std::vector<std::shared_ptr<const plan::Plan>>& plans, const std::string& kept_in) const;
  /// Counts calls of keep() with plans: what was planned before may have another plan since.
  uint64_t generation() const;
  /// Says that calls for which plan() chooses measure what they meet for the first time: OVERLACE_TUNE is first_use on
  /// rank 0.
  bool tunes_at_first_use() const;

 private:
  struct State;
  explicit Context(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

#pragma GCC visibility pop

}  // namespace overlace
