// Ranks as threads of this process.
#pragma once

#include <cstddef>
#include <functional>

#include "overlace/bootstrap.h"
#include "src/base/status.h"

namespace overlace::cli {

/// Runs `rank` once per rank and waits for all; the cause where any fails, with its rank. What it throws counts too.
base::Status run_thread_ranks(int ranks, const std::function<base::Status(Bootstrap&)>& rank);

/// Gives this thread the n-th core it may use, so that ranks do not share one by chance, which they do for long where
/// something else is busy too. After open, which counts the cores of its thread.
void pin_to_core(size_t n);

}  // namespace overlace::cli
