// fp64 loops that the operators' references are made of.
#pragma once

#include <vector>

#include "overlace/tensor.h"

namespace overlace::ops {

/// Element (i, j) of a matrix, or j of a vector.
double element(const TensorView& t, int64_t i, int64_t j);
/// out (rows of a, N) row-major += a b.
void add_product(const TensorView& a, const TensorView& b, double* out);
/// Every row of out (rows, N) += bias, if there is one.
void add_bias(const TensorView& bias, int64_t rows, int64_t n, double* out);

}  // namespace overlace::ops
