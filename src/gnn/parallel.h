// Independent pieces of work on several threads.
#pragma once

#include <cstdint>
#include <functional>

#include "src/base/status.h"

namespace overlace::gnn {

/// `asked`, or the cores where that is 0 or less.
int thread_count(int asked);

/// work(i, thread) for all i in [0, count), on `threads` threads, this one among them; `thread` counts from 0. Where
/// the system gives fewer threads, those do all. The failure of the smallest i, exceptions among them; pieces behind it
/// may be left out. invalid_argument: threads < 1.
base::Status parallel_each(int64_t count, int threads, const std::function<base::Status(int64_t i, int thread)>& work);

}  // namespace overlace::gnn
