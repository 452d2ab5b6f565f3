#include "src/ops/common/reference.h"

#include <cmath>

#include "src/ops/ag_gemm/impl.h"

namespace overlace::ops {

std::vector<double> ag_gemm_reference(const std::vector<TensorView>& shards, const TensorView& b,
                                      const TensorView& bias, spec::Activation activation) {
  const int64_t n = b.dim(1);
  int64_t m = 0;
  for (const TensorView& shard : shards) m += shard.dim(0);
  std::vector<double> c(static_cast<size_t>(m * n));
  double* rows = c.data();
  for (const TensorView& shard : shards) {
    add_product(shard, b, rows);
    rows += shard.dim(0) * n;
  }
  add_bias(bias, m, n, c.data());
  if (activation == spec::Activation::swiglu) {
    for (size_t i = 0; i < c.size() / 2; ++i) c[i] = c[2 * i] / (1 + std::exp(-c[2 * i])) * c[2 * i + 1];
    c.resize(c.size() / 2);
  }
  return c;
}

}  // namespace overlace::ops
