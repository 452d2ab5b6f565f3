// How long a schedule takes, by whatever means: the planner sees models through this.
#pragma once

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

}  // namespace overlace::spec
