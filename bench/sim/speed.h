// How fast the simulator is.
#pragma once

#include <string>

#include "src/base/status.h"

namespace overlace::bench {

/// Hold model of the event queue, candidates of 4 ranks; a table.
base::Result<std::string> speed();

}  // namespace overlace::bench
