// Walks a protocol of CPU ranks along many paths (src/runtime/backend/cpu/explore.h).
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "overlace/runtime.h"
#include "src/runtime/backend/cpu/explore.h"

namespace overlace::test {

struct ExploreOptions {
  int ranks = 2;
  int pieces = 1;          // of a put on the wire; more than one only with seeds
  int workers = 1;         // that draw the items of a fused kernel
  uint64_t num_seeds = 0;  // 0: every path there is
  uint64_t first_seed = 1;
  uint64_t max_paths = 1000000;  // of an exhaustive walk
  size_t max_steps = 1000;
  size_t heap_bytes = size_t{1} << 20;
  runtime::Observer* filter = nullptr;  // asked first; where it says no the step is left out
};

struct ExploreReport {
  uint64_t paths = 0;
  bool is_complete = false;  // every path was walked
  size_t longest = 0;        // steps of the longest path
  std::string failure;       // of the first path that failed: what, its seed, its steps. Nothing follows it.
};

/// What one rank does on a path; says what was wrong, "" if nothing.
using Protocol = std::function<std::string()>;

/// `make` runs once on each rank and allocates what the protocol uses; before each path all signals are zero and the
/// heap holds 0xff. A path fails if a rank says so, in a deadlock, if a signal was not consumed, or by its length.
ExploreReport explore(const ExploreOptions& options, const std::function<Protocol(Runtime&)>& make);

}  // namespace overlace::test
