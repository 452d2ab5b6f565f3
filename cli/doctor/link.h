// The link test of `overlace doctor`: ranks as threads of this process on each backend that the machine has.
#pragma once

#include <cstdint>

#include "overlace/runtime.h"
#include "src/base/json.h"

namespace overlace::cli {

/// One object per backend: {"backend", "ranks", "emulated", "error", "caps", "reach"}, on CPU ranks also "latency_us"
/// and "bandwidth_gb_s". A backend that fails says why in "error". Ends within about `timeout_ms` per backend.
base::Json link_tests(const RuntimeOptions& options, int num_gpus, int64_t timeout_ms);

}  // namespace overlace::cli
