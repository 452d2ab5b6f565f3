// All-reduces by an engine on a stream of their own, beside what other streams do.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

#include "overlace/async_collective.h"
#include "overlace/net_engine.h"
#include "src/base/status.h"

namespace overlace::runtime::nccl {

struct CollectiveParts {
  NetEngine* net = nullptr;
  int rank = 0, size = 0, device = 0;
  std::function<base::Status()> cause;                // why the rank was aborted; any thread
  std::function<void(Errc, std::string_view)> abort;  // of all ranks; any thread
  std::shared_ptr<void> owner;                        // of all that, gone last
};

/// Memory and streams of `device`. Its wait has the caller's deadline; a wait of a stream has that of the engine.
/// Throws what CUDA reports.
std::unique_ptr<AsyncCollective> make_collective(CollectiveParts parts);

}  // namespace overlace::runtime::nccl
