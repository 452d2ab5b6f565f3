// The gathered activation as a result of its own.
#pragma once

#include <vector>

#include "overlace/schedule.h"
#include "overlace/tensor.h"
#include "src/exec/run.h"

namespace overlace::ops {

/// Into `all`, (M, K) or the rows that an exchange brings: remote rows from the schedule's buffer, mine from `shard`.
std::vector<exec::CopyOut> copies_of_gathered(const TensorView& shard, const TensorView& all,
                                              const spec::Schedule& schedule, int rank);

}  // namespace overlace::ops
