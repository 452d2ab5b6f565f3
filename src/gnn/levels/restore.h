// Brings the CPU cache back to the rows that a segment begins with.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "src/gnn/levels/sweep.h"

namespace overlace::gnn {

struct SlotMove {
  uint32_t from = 0, to = 0;
  bool operator==(const SlotMove&) const = default;
};

/// First the moves one after the other, then the loads.
struct Restore {
  std::vector<SlotMove> moves;   // between slots; the slot behind the last one is spare
  std::vector<uint32_t> rows;    // vertices to be read, ascending
  std::vector<Admission> loads;  // ring_row is the place in `rows`
};

/// From the vertices that are in the slots `now` to `wanted`. Preconditions: as many, none twice.
Restore restore_of(std::span<const uint32_t> now, std::span<const uint32_t> wanted);

}  // namespace overlace::gnn
