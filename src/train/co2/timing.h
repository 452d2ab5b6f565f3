// How long a round of CO2 takes, in closed form: what plans tau, and what the simulator of whole steps must agree with.
#pragma once

#include <array>
#include <cstdint>

namespace overlace::train {

/// Groups that each reach every other over a link of their own.
struct GroupLinks {
  int groups = 1;
  double bytes_per_us = 0, latency_us = 0;
};

/// All-reduce of `bytes` in two shots: each group sums its part of what all have, then sends it to all, over all its
/// links at once. No other way is faster on these links. 0 for one group.
double all_reduce_us(const GroupLinks& links, double bytes);

struct RoundTime {
  double us = 0;
  double exposed_us = 0;  // that the steps wait for the all-reduce
};

/// A round of `tau` steps once rounds overlap. Its all-reduce begins behind the pass that ends it, and is awaited
/// before the pass that ends the next one (arXiv 2401.16265): it is hidden where the steps take longer.
RoundTime co2_round(int64_t tau, double step_us, double all_reduce_us, double pass_us);

/// `tau_min`: steps of the shortest round that hides the all-reduce with a tenth to spare. `taus`: a quarter of it to
/// four times that, at least 1; `exposed`: the share of such a round that the all-reduce shows.
struct TauPlan {
  int64_t tau_min = 1;
  std::array<int64_t, 5> taus{};
  std::array<double, 5> exposed{};
};
TauPlan plan_tau(double step_us, double all_reduce_us);

/// Share of a round of `tau` steps that its all-reduce shows.
double exposed_share(int64_t tau, double step_us, double all_reduce_us);

}  // namespace overlace::train
