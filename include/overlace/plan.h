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

/// A family of make_schedule with its degree (1 if it has none).
struct Candidate {
  std::string family;
  int degree = 1;
  bool operator==(const Candidate&) const = default;
};
/// Returns "hetero_unfused_1d q 2", without the degree if the family has none.
std::string to_string(const Candidate& candidate);

/// How a plan is found, from cheap to expensive. `rule` uses two rates, those of the link and of the GEMM; machines
/// without costs, teams on several hosts, and on GPUs GEMMs of other types than bf16, fp16 and fp8 always get it.
/// `recurrence` models every candidate. `simulation` simulates the best of these and those that are always considered.
/// `probe` runs the three best of these, the choice of `recurrence` and `library` on all ranks of a team.
enum class Tier { rule, recurrence, simulation, probe };
std::string to_string(Tier tier);

struct PlanOptions {
  Tier limit = Tier::recurrence;
  bool paper_rule = false;  // FiCCO's choice (arXiv 2512.10236) as far as it is public, instead of a model
  uint64_t heap_bytes = 0;  // most of each rank's symmetric heap that a schedule may take; 0: no limit
};

/// A candidate with its estimate and the band of it; after tier `probe` with the median and the spread of what was
/// measured.
struct Alternative {
  Candidate candidate;
  double us = 0, lo_us = 0, hi_us = 0;
};

/// The schedule that was chosen, and why.
struct Plan {
  spec::Schedule schedule;
  Candidate candidate;  // arguments of make_schedule, with `options`
  spec::Params options;
  spec::Estimate estimate;  // with its waterfall; all 0 where the machine has no numbers
  Tier tier = Tier::rule;
  std::string reason;               // tier, runner-up, gap, model error, the machine's age and share of priors
  std::string key;                  // key of the cache
  std::vector<Alternative> others;  // by ascending time, the chosen one among them
};

/// The parts that a planner may use in addition to its machine. All of them must outlive the planner.
struct PlannerParts {
  const spec::CostModel* simulation = nullptr;  // null: no tier simulation
  spec::Prober* prober = nullptr;               // null: no tier probe; the command line has one
  /// Path of a file that caches decisions of tiers simulation and probe between processes, one line of JSON each;
  /// empty: none. A line counts for the machine whose digest it names and for this version of the planner. Damaged
  /// lines are skipped with a warning and removed by the next write. Processes may share the file.
  std::string cache = {};
  /// Lines of such a file in place of its path, for planners that must find equal plans: kept() looks there, and its
  /// reasons say that they come from `kept_in`.
  std::string kept = {}, kept_in = {};
};

/// Chooses schedules. Equal operators, machines and options give equal plans, byte for byte; with tier `probe` once it
/// was measured. It caches what it has planned. Threads may share it; but with a prober each rank has a planner of its
/// own, and all of them plan the same operators in the same order.
class Planner {
 public:
  explicit Planner(spec::Machine machine, const PlannerParts& parts = {});
  ~Planner();
  Planner(const Planner&) = delete;
  Planner& operator=(const Planner&) = delete;

  /// Returns the plan for a problem. `library` and `serial` are among the candidates; for small M on GPUs the
  /// candidates are `library` and one kernel. The candidate with the smallest estimate wins; within half a percent, the
  /// one whose family was predicted best on this machine. `library` wins if the gain over it is below 2 %, and on GPUs
  /// if a model finds less than 10 us to hide. If a probe fails, on all ranks, the plan is that of the tier before and
  /// says why. Throws ScheduleError for a problem that no schedule fits.
  std::shared_ptr<const Plan> plan(const spec::OpSpec& op, const PlanOptions& options = {});
  /// Returns what PlannerParts::cache has for the problem on this machine, of tier `probe`, else of tier `simulation`,
  /// else what was measured on a shipped machine and comes with the library; null if there is none of them. Decides and
  /// writes nothing. Throws ScheduleError as plan() does.
  std::shared_ptr<const Plan> kept(const spec::OpSpec& op) const;
  /// Makes kept() return this plan of tier `probe`, which a planner of the same machine made, for its bucket of rows.
  void keep(const Plan& plan, const std::string& kept_in);
  const spec::Machine& machine() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Returns all families with all degrees that are sensible for the problem: copies have at least 512 KiB on GPUs and at
/// least one row elsewhere.
std::vector<Candidate> candidates(const spec::OpSpec& op, const spec::Machine& machine);

/// Returns the choice of PlanOptions::paper_rule: FiCCO's rule over operational intensity, memory traffic and M against
/// K. The paper's thresholds are not public; these follow from the machine's ridge point and launch time.
Candidate paper_rule(const spec::OpSpec& op, const spec::Machine& machine);

#pragma GCC visibility pop

}  // namespace overlace::plan
