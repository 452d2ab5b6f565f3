// How much memory a run takes, before it takes any.
#pragma once

#include <cstdint>

#include "cli/run/plan.h"
#include "src/base/status.h"

namespace overlace::cli {

/// Symmetric heap of one rank: what the schedules of all sites need at once, so that none is given up between two
/// measurements. Errors of schedules that cannot be prepared.
base::Result<uint64_t> heap_bytes(const RunPlan& plan);

/// Estimate of what a run takes on this host: weights, activations and heaps of its ranks, and the fp64 oracle, which
/// one of the hosts holds.
double host_bytes(const RunPlan& plan, uint64_t heap_bytes);

/// out_of_memory with both numbers where CPU ranks need more than `available` bytes.
base::Status check_memory(const RunPlan& plan, double available);

/// Physical memory of this host, or less where the cgroup allows less.
double available_bytes();

}  // namespace overlace::cli
