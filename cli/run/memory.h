// How much memory a run takes, before it takes any.
#pragma once

#include <cstdint>
#include <limits>

#include "cli/run/plan.h"
#include "src/base/status.h"

namespace overlace::cli {

/// Symmetric heap of one rank: what the schedules of all sites need at once, so that none is given up between two
/// measurements. Errors of schedules that cannot be prepared.
base::Result<uint64_t> heap_bytes(const RunPlan& plan);

/// Estimate of what a run takes on this host: weights, activations and heaps of its ranks, and the fp64 oracle, which
/// one of the hosts holds.
double host_bytes(const RunPlan& plan, uint64_t heap_bytes);

/// Pinned memory of this host that GPU ranks stream layers from or through; 0 where all layers fit.
double streamed_host_bytes(const RunPlan& plan);

/// Bytes of this host.
struct HostMemory {
  double physical = 0;  // a virtual machine that grows with use has less than it may have
  double limit = std::numeric_limits<double>::infinity();  // of the control group
};
HostMemory host_memory();

/// out_of_memory with both numbers: where CPU ranks need more than there is or the control group allows, or GPU ranks
/// stream from more than it allows. What they stream from is pinned, so that the driver refuses what there is not.
base::Status check_memory(const RunPlan& plan, const HostMemory& host);

}  // namespace overlace::cli
