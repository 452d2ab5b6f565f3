// Ranks that do the same, turned by their number: one stands for all.
#pragma once

#include <vector>

#include "src/spec/expand.h"

namespace overlace::spec {

/// Rank 0 alone where the template proves that all ranks are alike (Expander::are_ranks_alike), else all of them. Adds
/// tables stay empty where it is one. Precondition of the former: the schedule holds its checks; whether the regions of
/// other ranks lie inside their buffers is not looked at.
base::Result<std::vector<Expansion>> expand_alike(const Schedule& schedule, int ranks);

}  // namespace overlace::spec
