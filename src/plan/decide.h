// From estimates to a decision; what the planner and the choice for GPUs share.
#pragma once

#include <vector>

#include "src/plan/decision.h"

namespace overlace::plan {

/// With the band of a tier: the 90th percentile of its errors for that family.
Alternative with_band(const spec::OpSpec& op, const spec::Machine& machine, Tier tier, const Candidate& candidate,
                      double us);
/// By ascending time.
void rank(std::vector<Alternative>* list);
/// Tier recurrence: all candidates that it knows, ranked; none is chosen yet.
Decision estimated(const spec::OpSpec& op, const spec::Machine& machine);
/// Chooses among `others`, which are ranked, and says why.
void settle(const spec::OpSpec& op, const spec::Machine& machine, Decision* decision);

}  // namespace overlace::plan
