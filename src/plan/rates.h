// Tier rule of the planner: a choice by two rates, the link's and the GEMM's.
#pragma once

#include "src/plan/decision.h"

namespace overlace::plan {

/// For machines without costs (spec::rated_machine), several hosts, and what was not measured on GPUs. Falls back to
/// `library` wherever a finer schedule is not expected to win, or none that is fits into `heap_bytes` (0: any number).
Decision by_rates(const spec::OpSpec& op, const spec::Machine& machine, uint64_t heap_bytes);

/// Why GPUs take `library` whatever a model says: too little to hide. Empty where there is enough.
std::string too_little_to_hide(const spec::OpSpec& op, const spec::Machine& machine);

}  // namespace overlace::plan
