// The twin of the fused kernels on CPU ranks.
#pragma once

#include "src/exec/run.h"

namespace overlace::ops::fused {

/// A part of a fused kernel: c = a b, or with combine: add c += a b, whose sums have not been rounded in between; the
/// bias; one rounding. Tiles come in the order of tile_order_pod.h. What the GEMM reads is awaited before it, credits
/// before the first store.
base::Status tiles_on_cpu(const exec::BodyContext& context);

}  // namespace overlace::ops::fused
