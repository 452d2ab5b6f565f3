#include "src/ops/common/reference.h"

#include "src/ops/gemm_rs/impl.h"

namespace overlace::ops {

std::vector<double> gemm_sum_reference(const std::vector<TensorView>& a, const std::vector<TensorView>& b,
                                       const TensorView& bias) {
  const int64_t m = a[0].dim(0), n = b[0].dim(1);
  std::vector<double> sum(static_cast<size_t>(m * n));
  for (size_t rank = 0; rank < a.size(); ++rank) add_product(a[rank], b[rank], sum.data());
  add_bias(bias, m, n, sum.data());
  return sum;
}

}  // namespace overlace::ops
