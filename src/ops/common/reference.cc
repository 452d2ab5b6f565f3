#include "src/ops/common/reference.h"

#include "src/base/half.h"

namespace overlace::ops {

double element(const TensorView& t, int64_t i, int64_t j) {
  const int64_t at = t.ndim == 1 ? j * t.stride(0) : i * t.stride(0) + j * t.stride(1);
  return base::load_element(t.data, t.dtype, at);
}

void add_product(const TensorView& a, const TensorView& b, double* out) {
  for (int64_t i = 0; i < a.dim(0); ++i) {
    for (int64_t j = 0; j < b.dim(1); ++j) {
      double sum = 0;
      for (int64_t k = 0; k < a.dim(1); ++k) sum += element(a, i, k) * element(b, k, j);
      out[i * b.dim(1) + j] += sum;
    }
  }
}

void add_bias(const TensorView& bias, int64_t rows, int64_t n, double* out) {
  if (!bias.defined()) return;
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < n; ++j) out[i * n + j] += element(bias, 0, j);
  }
}

}  // namespace overlace::ops
