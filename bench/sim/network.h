// How fast collectives are simulated, message by message.
#pragma once

#include <string>

#include "src/base/status.h"

namespace overlace::bench {

/// 1024 ranks, ring all-reduce of 64 MiB and direct all-to-all, beside ASTRA-sim on the same kind of machine; a table.
base::Result<std::string> network_speed();

}  // namespace overlace::bench
