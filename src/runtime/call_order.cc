#include "src/runtime/call_order.h"

namespace overlace::runtime {

size_t calls_to_wait_for(std::span<const LiveCall> live, int sms, int room) {
  int64_t taken = sms;
  size_t first = live.size();
  while (first > 0 && taken + live[first - 1].sms <= room) taken += live[--first].sms;
  return first;
}

base::Status check_grid(std::string_view kernel, int64_t grid, int blocks_per_sm, int sms) {
  const int64_t room = int64_t{blocks_per_sm} * sms;
  if (grid <= room) return {};
  return base::error(Errc::co_residency,
                     "{}: a grid of {} blocks that wait for each other, room for {} ({} SMs with {} blocks each)",
                     kernel, grid, room, sms, blocks_per_sm);
}

}  // namespace overlace::runtime
