// What the planner's models would have chosen among schedules that were measured, and what that would have cost.
#pragma once

#include <string>
#include <vector>

#include "bench/sim/records.h"

namespace overlace::bench {

/// A line per case with three measured candidates of the planner or more, and per chooser the share of cases within 2 %
/// of the best, the mean and largest regret, and the mean where the choice was not the best. `predicted_us` is of the
/// simulator.
std::string choices(const std::vector<Measured>& list, const spec::Machine& machine);

}  // namespace overlace::bench
