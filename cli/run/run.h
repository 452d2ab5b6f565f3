// `overlace run`: starts the ranks, or is one of them.
#pragma once

#include "cli/run/options.h"

namespace overlace::cli {

/// The whole subcommand: plans, starts the ranks (processes of this executable with the arguments of this process, or
/// threads), waits, and words what failed on stderr. Returns the exit status (docs/reference/errors.md).
int run(const RunOptions& options);

}  // namespace overlace::cli
