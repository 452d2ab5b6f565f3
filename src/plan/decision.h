// What the planner found out for a bucket of calls, before it builds the schedule of one of them.
#pragma once

#include <string>
#include <vector>

#include "overlace/plan.h"

namespace overlace::plan {

struct Decision {
  Candidate candidate;
  Tier tier = Tier::rule;
  std::string reason;
  std::vector<Alternative> others = {};
  spec::Params options = {};  // of make_schedule
};

}  // namespace overlace::plan
