// Which operators have a kernel that computes and communicates in one.
#pragma once

#include "overlace/schedule.h"

namespace overlace::plan {

/// What the kernels of k_slab and tma_slot are compiled for on GPUs (src/ops/gemm_core/choose.h has the word).
bool is_fusable(const spec::OpSpec& op);

}  // namespace overlace::plan
