#include "src/ops/common/reference.h"

#include "src/ops/ag_gemm/impl.h"

namespace overlace::ops {

std::vector<double> ag_gemm_reference(const std::vector<TensorView>& shards, const TensorView& b,
                                      const TensorView& bias) {
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
  return c;
}

}  // namespace overlace::ops
