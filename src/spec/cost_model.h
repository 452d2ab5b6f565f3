// How long a schedule takes, by whatever means: the planner sees models and measurements through this.
#pragma once

#include <string>
#include <vector>

#include "overlace/cost_model.h"
#include "overlace/schedule.h"
#include "src/base/status.h"
#include "src/spec/machine.h"

namespace overlace::spec {

struct CostModel {
  virtual ~CostModel() = default;
  /// bad_schedule, or not_supported where the machine has no numbers for what the schedule does.
  virtual base::Result<Estimate> estimate(const Schedule& schedule, const OpSpec& op, const Machine& machine) const = 0;
};

/// Runs schedules where they are planned for: one on each rank of a team. All calls are collective, and their results
/// the same on all ranks.
struct Prober {
  virtual ~Prober() = default;
  virtual bool is_first() const = 0;
  /// The text of the first rank.
  virtual base::Result<std::string> from_first(const std::string& mine) = 0;
  /// Median and spread of each, of the slowest rank. On failure of one rank all get an error, at once where it
  /// is the first run of a schedule that fails, else at their timeout.
  virtual base::Result<std::vector<Estimate>> measure(const std::vector<Schedule>& schedules, const OpSpec& op) = 0;
};

}  // namespace overlace::spec
