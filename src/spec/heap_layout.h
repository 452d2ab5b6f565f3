// Where the symmetric buffers of a schedule lie in their block of the heap.
#pragma once

#include <cstdint>
#include <vector>

#include "overlace/schedule.h"
#include "src/spec/expand.h"

namespace overlace::spec {

/// A block of `copies` equal parts that rotate over the calls; each holds all symmetric buffers.
struct HeapLayout {
  std::vector<uint64_t> offsets;  // per Schedule::buffers, inside a copy; only of symmetric ones
  uint64_t copy_bytes = 0;
  int copies = 1;  // the largest depth of a symmetric buffer

  /// Saturates at 2^64 - 1.
  uint64_t bytes() const;
};
/// The layout is the same for every rank's expansion. Sizes that overflow saturate.
HeapLayout heap_layout(const Schedule& schedule, const Expansion& expansion);

/// What the schedule takes of the symmetric heap of each rank; throws ScheduleError where it cannot be expanded.
uint64_t heap_bytes(const Schedule& schedule, int ranks);

}  // namespace overlace::spec
