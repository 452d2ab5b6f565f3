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
}

namespace overlace::plan {

#pragma GCC visibility push(default)  // exported by liboverlace.so

struct Choice {
  spec::Schedule schedule;
  std::string reason;  // "one wave of tiles and no link faster than the GEMM: library"
};

/// What the rule needs to know of the machine.
struct Hardware {
  bool is_gpu = false;
  double link_bytes_per_s = 0;  // per direction and rank; 0: copies cost the computing core itself (CPU, no link)
  double flops_per_s = 0;       // sustained, per rank, of this dtype; 0: unknown
  int hosts = 1;  // of equal size; several: the link is that from one host to another, and their ranks share it
};

/// Pure: same input, same choice. Falls back to `library` wherever a finer schedule is not expected to win.
Choice choose(const spec::OpSpec& op, const Hardware& hardware);

/// A family of make_schedule at a degree (1 where it has none).
struct Candidate {
  std::string family;
  int degree = 1;
  bool operator==(const Candidate&) const = default;
};
/// "hetero_unfused_1d q 2"; without a degree where the family has none.
std::string to_string(const Candidate& candidate);

/// How a plan is found, from cheap to dear. rule: a table over features of the call, the one that was fitted to
/// measurements of this kind of machine. recurrence: a model of every candidate. simulation: the best of these, and
/// those that are always looked at, on the simulator.
enum class Tier { rule, recurrence, simulation };
std::string to_string(Tier tier);

struct PlanOptions {
  Tier limit = Tier::recurrence;
  bool paper_rule = false;  // FiCCO's choice (arXiv 2512.10236) as far as it is public, instead of a model
};

struct Alternative {
  Candidate candidate;
  double us = 0, lo_us = 0, hi_us = 0;
};

struct Plan {
  spec::Schedule schedule;
  Candidate candidate;
  spec::Estimate estimate;  // with its waterfall; all 0 where the machine has no numbers
  Tier tier = Tier::rule;
  std::string reason;               // tier, runner-up, gap, model error, the machine's age and share of priors
  std::string key;                  // of the cache
  std::vector<Alternative> others;  // by ascending time, the chosen one among them
};

/// Same operator, machine and options: the same plan, byte for byte. Keeps what it has planned. Safe to share between
/// threads.
class Planner {
 public:
  /// `simulation`: of tier simulation; null: that tier is not there. It must outlive the planner.
  explicit Planner(spec::Machine machine, const spec::CostModel* simulation = nullptr);
  ~Planner();
  Planner(const Planner&) = delete;
  Planner& operator=(const Planner&) = delete;

  /// `library` and `serial` are always among the candidates. The one with the smallest estimate wins, each lengthened
  /// by the median error of its family on this machine; a gain over `library` below 2 % or that error picks `library`.
  /// Throws ScheduleError for an operator that no schedule fits.
  std::shared_ptr<const Plan> plan(const spec::OpSpec& op, const PlanOptions& options = {});
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
