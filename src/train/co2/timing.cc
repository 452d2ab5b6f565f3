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

double exposed_share(int64_t tau, double step_us, double all_reduce_us) {
  const RoundTime round = co2_round(tau, step_us, all_reduce_us, 0);
  return round.exposed_us / round.us;
}

TauPlan plan_tau(double step_us, double all_reduce_us) {
  TauPlan plan;
  plan.tau_min = std::max<int64_t>(1, static_cast<int64_t>(std::ceil(1.1 * all_reduce_us / step_us)));
  for (size_t i = 0; i < plan.taus.size(); ++i) {
    const double factor = std::pow(2.0, static_cast<double>(i) - 2);
    plan.taus[i] = std::max<int64_t>(1, std::lround(static_cast<double>(plan.tau_min) * factor));
    plan.exposed[i] = exposed_share(plan.taus[i], step_us, all_reduce_us);
  }
  return plan;
}

}  // namespace overlace::train
