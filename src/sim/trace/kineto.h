// Timelines that PyTorch's profiler (Kineto) and other programs write in Chrome's trace event format.
#pragma once

#include <string_view>

#include "src/base/json.h"
#include "src/base/status.h"
#include "src/base/trace.h"

namespace overlace::sim {

/// Whether it is such a timeline, and not one of ours.
bool is_foreign_chrome(const base::Json& root);

/// Complete events; where there are kernels and copies of a device, those only. A stream or thread is a lane; the rank
/// is what `distributedInfo` says, else 0. Kinds go by category and name. Errc::corrupt with `source` and the event.
base::Result<base::Trace> parse_kineto(const base::Json& root, std::string_view source);

}  // namespace overlace::sim
