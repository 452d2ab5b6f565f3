// Descriptors between the processes of one host.
#pragma once

#include <cstdint>
#include <vector>

#include "src/base/status.h"
#include "src/runtime/control.h"

namespace overlace::runtime {

/// Collective. Gives `mine` to every rank of the control plane; element r of the result is rank r's descriptor (own: a
/// duplicate), close-on-exec, owned by the caller. Numbered and acknowledged: it returns ok only if all peers have
/// received ours. On failure nothing stays open.
base::Result<std::vector<int>> exchange_fds(Control& control, int mine, int64_t timeout_ms);

}  // namespace overlace::runtime
