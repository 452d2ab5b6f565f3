// Collectives of a team by NCCL: a communicator of its own, one rank per device.
#pragma once

#include <cstdint>
#include <memory>

#include "overlace/net_engine.h"
#include "overlace/runtime.h"
#include "src/base/status.h"

namespace overlace::runtime {
class EngineHost;
}

namespace overlace::runtime::nccl {

struct Options {
  int device = 0;
  int max_ctas = 0;  // 0: NCCL's choice
  int64_t timeout_ms = 0;
  bool is_required = false;  // a missing library is an error, not a null engine
};

/// The library can be opened in this process.
bool is_available();
/// Collective on `team`, with a deadline; warmed up. Null on all ranks where a rank has no library and none is
/// required. `host` polls the communicator's asynchronous errors and aborts it with the rank; it outlives the engine.
base::Result<std::unique_ptr<NetEngine>> open_engine(Team& team, const Options& options, EngineHost& host);

}  // namespace overlace::runtime::nccl
