// Which schedule to run, and why.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "overlace/cost_model.h"
#include "overlace/machine.h"
#include "overlace/schedule.h"

namespace overlace::spec {
struct CostModel;
struct Prober;
}  // namespace overlace::spec

namespace overlace::plan {

#pragma GCC visibility push(default)  // exported by liboverlace.so

/// A family of make_schedule at a degree (1 where it has none).
struct Candidate {
  std::string family;
  int degree = 1;
  bool operator==(const Candidate&) const = default;
};
/// "hetero_unfused_1d q 2"; without a degree where the family has none.
std::string to_string(const Candidate& candidate);

/// How a plan is found, from cheap to dear. rule: by two rates, the link's and the GEMM's; what machines without costs,
/// teams on several hosts and products of other than 16 bits on GPUs get in any case. recurrence: a model of every
/// candidate. simulation: the best of these, and those that are always looked at, on the simulator. probe: the three
/// best of these and `library`, run for real by all ranks of a team together.
enum class Tier { rule, recurrence, simulation, probe };
std::string to_string(Tier tier);

struct PlanOptions {
  Tier limit = Tier::recurrence;
  bool paper_rule = false;  // FiCCO's choice (arXiv 2512.10236) as far as it is public, instead of a model
  uint64_t heap_bytes = 0;  // of each rank's symmetric heap that a schedule may take; 0: any number
};

/// An estimate with its band; of tier probe the median and the spread of what was measured.
struct Alternative {
  Candidate candidate;
  double us = 0, lo_us = 0, hi_us = 0;
};

struct Plan {
  spec::Schedule schedule;
  Candidate candidate;  // what make_schedule was given, with `options`
  spec::Params options;
  spec::Estimate estimate;  // with its waterfall; all 0 where the machine has no numbers
  Tier tier = Tier::rule;
  std::string reason;               // tier, runner-up, gap, model error, the machine's age and share of priors
  std::string key;                  // of the cache
  std::vector<Alternative> others;  // by ascending time, the chosen one among them
};

/// What a planner may use besides its machine. All of it must outlive the planner.
struct PlannerParts {
  const spec::CostModel* simulation = nullptr;  // null: no tier simulation
  spec::Prober* prober = nullptr;               // null: no tier probe; the command line has one
  /// File that keeps decisions of tiers simulation and probe between processes, a line of JSON each; empty: none. A
  /// line counts for the machine whose digest it names and for this version of the planner; damaged ones are passed
  /// over with a warning and go with the next write. Processes may share it.
  std::string cache = {};
  /// Lines of such a file instead, for planners that must find the same: kept() looks there, and says in its reasons
  /// that they come from `kept_in`.
  std::string kept = {}, kept_in = {};
};

/// Same operator, machine and options: the same plan, byte for byte; of tier probe once it was measured. Keeps what it
/// has planned. Safe to share between threads, but with a prober each rank has a planner of its own, and all of them
/// plan the same operators in the same order.
class Planner {
 public:
  explicit Planner(spec::Machine machine, const PlannerParts& parts = {});
  ~Planner();
  Planner(const Planner&) = delete;
  Planner& operator=(const Planner&) = delete;

  /// `library` and `serial` are among the candidates; of few rows on GPUs only the library and one kernel are. The one
  /// with the smallest estimate wins (within half a percent the one whose family was predicted best on this machine); a
  /// gain over `library` below 2 % picks `library`, as does a model where GPUs have less than 10 us to hide. Where a
  /// probe fails, on all ranks, the plan is that of the tier before and says why. Throws ScheduleError for an operator
  /// that no schedule fits.
  std::shared_ptr<const Plan> plan(const spec::OpSpec& op, const PlanOptions& options = {});
  /// What PlannerParts::cache keeps for the operator on this machine, of tier probe, else of tier simulation; null
  /// where it has neither. Decides and writes nothing. Throws ScheduleError as plan() does.
  std::shared_ptr<const Plan> kept(const spec::OpSpec& op) const;
  const spec::Machine& machine() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// All families at all degrees that make sense for the operator: copies of at least 512 KiB on GPUs, at least a row.
std::vector<Candidate> candidates(const spec::OpSpec& op, const spec::Machine& machine);

/// What PlanOptions::paper_rule takes: FiCCO's rule over operational intensity, memory traffic and M against K. The
/// paper's thresholds are not public; these are ours, from the machine's ridge point and launch time.
Candidate paper_rule(const spec::OpSpec& op, const spec::Machine& machine);

#pragma GCC visibility pop

}  // namespace overlace::plan
