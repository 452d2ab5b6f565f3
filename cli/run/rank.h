// One rank of `overlace run`: choose, check, time, trace; rank 0 also prints and writes.
#pragma once

#include "cli/run/options.h"
#include "cli/run/plan.h"
#include "overlace/bootstrap.h"
#include "src/base/status.h"

namespace overlace::cli {

/// Collective over the bootstrap's ranks, by the calling thread. The value: every check passed (the same on all ranks).
/// `has_opened`: whether it came as far as a runtime of all ranks.
base::Result<bool> run_rank(const RunOptions& options, const RunPlan& plan, Bootstrap& bootstrap,
                            bool* has_opened = nullptr);

}  // namespace overlace::cli
