// Device data for benches: normal values that any rank can recompute, and a check of products against fp64. What each
// does: bench/common/device.h.
#pragma once

#include "bench/common/device.h"

namespace overlace::bench {

base::Status fill_normal(const TensorView& matrix, const Normal& values, void* cuda_stream);

/// `matrix`: dense, elements of 16 bits. `to`: the same with its dimensions swapped.
base::Status transpose(const TensorView& matrix, void* to, void* cuda_stream);

base::Result<Check> check_product(const TensorView& out, const Factor* factors, int count, int64_t first_row,
                                  DType operand, int64_t samples, uint64_t seed, void* cuda_stream);

base::Result<Difference> compare(const TensorView& a, const TensorView& b, void* cuda_stream);

}  // namespace overlace::bench
