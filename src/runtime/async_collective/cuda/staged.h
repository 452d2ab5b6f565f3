// All-reduces of device memory through the host: copy engines bring pieces of buckets to a ring of pinned memory, the
// worker of collective `host` sums them there, copy engines bring them back, and a word says so to streams.
#pragma once

#include <memory>

#include "src/runtime/async_collective/host.h"

namespace overlace::runtime {

/// Makes a collective for memory of options.device. Throws what CUDA reports.
std::unique_ptr<AsyncCollective> make_staged(std::unique_ptr<HostTransport> host, const HostCollectiveOptions& options);

}  // namespace overlace::runtime
