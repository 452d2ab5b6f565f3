// Which experts a token goes to, in fp64: what the oracle holds a run's choice against.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "src/model/config.h"

namespace overlace::model {

/// The experts with the largest keys, one of each, in the groups that are kept.
std::vector<int32_t> best_experts(std::span<const double> keys, const Experts& experts);

/// By how much `chosen` misses such a choice: the least d for which there are groups to keep whose means of their two
/// best keys are at most d below those of any other group, and whose experts that were not chosen have keys at most d
/// above the chosen ones'. 0 where it is one; infinite where it is no choice of different experts of so many groups.
double choice_gap(std::span<const double> keys, std::span<const int32_t> chosen, const Experts& experts);

}  // namespace overlace::model
