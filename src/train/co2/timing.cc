#include "src/train/co2/timing.h"

#include <algorithm>
#include <cmath>

namespace overlace::train {

double all_reduce_us(const GroupLinks& links, double bytes) {
  if (links.groups < 2) return 0;
  return 2 * (std::ceil(std::ceil(bytes) / links.groups) / links.bytes_per_us + links.latency_us);
}

RoundTime co2_round(int64_t tau, double step_us, double all_reduce_us, double pass_us) {
  const double steps_us = static_cast<double>(tau) * step_us;
  return {std::max(steps_us, all_reduce_us) + pass_us, std::max(0.0, all_reduce_us - steps_us)};
}

}  // namespace overlace::train
