// All-reduces that a worker thread sums on the host, as a transport of device memory uses them.
#pragma once

#include <memory>

#include "overlace/async_collective.h"

namespace overlace::runtime {

class HostTransport : public AsyncCollective {
 public:
  /// wait() of a caller that has waited already for all but `left_ms` of `timeout_ms`.
  virtual void finish_wait(Ticket ticket, int64_t timeout_ms, int64_t left_ms) = 0;
};

/// open_host_collective for memory of the host.
std::unique_ptr<HostTransport> open_host_transport(Bootstrap& bootstrap, const HostCollectiveOptions& options);

/// Makes a collective for memory of options.device, over `host`. Only where device_transports() has it.
std::unique_ptr<AsyncCollective> stage_collective(std::unique_ptr<HostTransport> host,
                                                  const HostCollectiveOptions& options);

}  // namespace overlace::runtime
