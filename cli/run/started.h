// Ranks that somebody else started (mpirun, srun, torchrun): they tell each other on which hosts they are before a
// runtime is open, and what failed.
#pragma once

#include <cstdint>
#include <vector>

#include "cli/run/options.h"
#include "cli/run/plan.h"
#include "overlace/bootstrap.h"
#include "src/base/env.h"
#include "src/base/status.h"

namespace overlace::cli {

/// Where a rank is. A machine can be several hosts: by name, by network, or because its ranks say so.
struct HostMark {
  uint64_t host = 0, machine = 0;
};

/// Hosts of all ranks, as `rank` sees them.
Placement place(const std::vector<HostMark>& marks, int rank);

/// Options that contradict ranks which are there already; every rank can say so by itself.
base::Status check_started(const RunOptions& options, const base::Env& env, const Surroundings& around);

/// This process as a rank of a job. Rank 0 prints what failed if the ranks can still tell each other, else each does.
/// Returns the exit status, the same on all ranks then.
int run_started(const RunOptions& options, const base::Env& env, Surroundings around);

}  // namespace overlace::cli
