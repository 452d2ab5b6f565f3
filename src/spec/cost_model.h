// How long a schedule takes, by whatever means: the planner sees models through this.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "overlace/schedule.h"
#include "src/base/status.h"
#include "src/spec/machine.h"

namespace overlace::spec {

/// A time, term by term: "ideal" first, then what each loss adds; the terms add up to Estimate::us.
using Waterfall = std::vector<std::pair<std::string, double>>;

struct Estimate {
  double us = 0, lo_us = 0, hi_us = 0;
  Waterfall parts;
};

struct CostModel {
  virtual ~CostModel() = default;
  /// bad_schedule, or not_supported where the machine has no numbers for what the schedule does.
  virtual base::Result<Estimate> estimate(const Schedule& schedule, const OpSpec& op, const Machine& machine) const = 0;
};

}  // namespace overlace::spec
