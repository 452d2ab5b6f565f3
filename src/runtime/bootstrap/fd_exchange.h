// Descriptors between the processes of one host.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "src/base/status.h"
#include "src/runtime/control.h"

namespace overlace::runtime {

/// Collective among `members` (this rank is one). Gives `mine` to all of them; element i of the result is members[i]'s
/// descriptor (own: a duplicate), close-on-exec, owned by the caller. Numbered and acknowledged: it returns ok only if
/// all peers have received ours. On failure nothing stays open.
base::Result<std::vector<int>> exchange_fds(Control& control, std::span<const int> members, int mine,
                                            int64_t timeout_ms);

}  // namespace overlace::runtime
