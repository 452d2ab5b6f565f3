// Independent pieces of work on several threads.
#pragma once

#include <cstdint>
#include <functional>

#include "src/base/status.h"

namespace overlace::gnn {

/// work(i, thread) for all i in [0, count), on `threads` threads, this one among them; `thread` counts from 0. All
/// pieces are done, then the failure of the smallest i is returned, exceptions among them. invalid_argument: threads
/// < 1.
base::Status parallel_each(int64_t count, int threads, const std::function<base::Status(int64_t i, int thread)>& work);

}  // namespace overlace::gnn
