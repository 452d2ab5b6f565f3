// Ranks as threads of this process.
#pragma once

#include <functional>

#include "overlace/bootstrap.h"
#include "src/base/status.h"

namespace overlace::cli {

/// Runs `rank` once per rank and waits for all; the cause where any fails, with its rank. What it throws counts too.
base::Status run_thread_ranks(int ranks, const std::function<base::Status(Bootstrap&)>& rank);

}  // namespace overlace::cli
