// Ranks as processes of this host.
#pragma once

#include "cli/run/options.h"
#include "cli/run/plan.h"

namespace overlace::cli {

/// Starts this executable with the arguments of this process once per rank, waits, and says on stderr what failed.
/// Returns the exit status.
int launch_ranks(const RunPlan& plan);

/// Starts as many groups as hosts are emulated; they find out where they are and say themselves what failed. CPU
/// ranks are started by mpirun: then it does not return where that can be started.
int launch_hosts(const RunPlan& plan);

/// `overlace run -n N [--emulate-hosts H] -- PROGRAM ...`. With H and `--backend cpu` by mpirun, as above.
int launch_program(const RunOptions& options);

}  // namespace overlace::cli
