// What the planner's models would have chosen among schedules that were measured, and what that would have cost.
#pragma once

#include <string>
#include <vector>

#include "bench/sim/records.h"

namespace overlace::bench {

/// Markdown: per chooser the share of cases within 2 % of the best measured, the mean and largest regret, and the mean
/// where the choice was not the best; then a line per case with three measured candidates of the planner or more. The
/// models choose among what was measured; a rule's choice may not be there. After predict().
std::string choices(const std::vector<Measured>& list, const spec::Machine& machine);

/// Markdown, a line per such case, the largest regret first: what was best and what the recurrence took, both times as
/// measured, how far they spread within their runs, and how far the predictions were off.
std::string misses(const std::vector<Measured>& list, const spec::Machine& machine);

}  // namespace overlace::bench
