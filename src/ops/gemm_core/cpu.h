// The twin of the fused kernels on CPU ranks.
#pragma once

#include "src/exec/run.h"

namespace overlace::ops::gemm_core {

/// A part of a fused kernel: c = a b, the sources of other ranks on both sides of it in rank order, the bias; one
/// rounding. Tiles come in the order of tile_order_pod.h; waits are made when what they cover is needed, slab by slab
/// of K where task parameter "arrival" is "k_slab". Does what the device does in the same order, with the same words.
base::Status tiles_on_cpu(const exec::BodyContext& context);

}  // namespace overlace::ops::gemm_core
