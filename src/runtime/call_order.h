// Which calls may run side by side on one GPU: arithmetic of SM budgets, without a GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "src/base/status.h"

namespace overlace::runtime {

/// A call of another channel that has not ended yet, as far as is known.
struct LiveCall {
  uint32_t channel = 0;
  int sms = 0;
};

/// SMs that a call may fill: its budget, or all there are.
constexpr int sms_of(int budget, int room) { return budget == 0 ? room : budget; }

/// How many of `live` (oldest first, at most one per channel) must end before a call of `sms` SMs starts, so that those
/// that go on fit beside it. Calls only wait for earlier ones, and all ranks make theirs in the same order: no cycle.
size_t calls_to_wait_for(std::span<const LiveCall> live, int sms, int room);

/// co_residency with grid and room unless all blocks of a grid are resident at once. Blocks that wait for each other
/// must be.
base::Status check_grid(std::string_view kernel, int64_t grid, int blocks_per_sm, int sms);

}  // namespace overlace::runtime
