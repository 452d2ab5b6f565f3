// From estimates to a decision.
#pragma once

#include <vector>

#include "src/plan/decision.h"

namespace overlace::plan {

/// With the band of a tier: the 90th percentile of its errors for that family.
Alternative with_band(const spec::OpSpec& op, const spec::Machine& machine, Tier tier, const Candidate& candidate,
                      double us);
/// Whether `heap_bytes` of each rank have room for the schedule; the library is always left. 0: any number of bytes.
bool fits(const spec::OpSpec& op, const Candidate& candidate, uint64_t heap_bytes, const spec::Params& options = {});
/// By ascending time.
void rank(std::vector<Alternative>* list);
/// Tier recurrence: all candidates that it knows, ranked; none is chosen yet.
Decision estimated(const spec::OpSpec& op, const spec::Machine& machine);
/// Chooses among `others`, which are ranked, and says why.
void settle(const spec::OpSpec& op, const spec::Machine& machine, Decision* decision);

}  // namespace overlace::plan
