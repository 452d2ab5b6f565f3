// scale_ag: y = alpha x, gathered from all ranks. A toy operator and its families, known to this folder alone: what a
// program does that adds an operator to the library. It sees public headers only.
#pragma once

#include <atomic>
#include <cstdint>

#include "overlace/operator.h"

namespace overlace::toy {

/// OpSpec: M rows of all ranks, N columns, the field "alpha"; K is 0. Arguments X (my rows, N) and Y (M, N).
/// Families: library, serial and pushed, which sends chunk s while chunk s + 1 is scaled.
extern const spec::OperatorDef kOperator;
/// Tasks that the function of the operator has computed, by all ranks that are threads of this process.
extern std::atomic<int64_t> num_computed;

}  // namespace overlace::toy
