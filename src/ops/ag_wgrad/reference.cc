#include "src/ops/common/reference.h"

#include "src/ops/ag_wgrad/impl.h"

namespace overlace::ops {

std::vector<double> ag_wgrad_reference(const std::vector<TensorView>& shards, const TensorView& b) {
  const int64_t k = shards.front().dim(1), n = b.dim(1);
  std::vector<double> c(static_cast<size_t>(k * n));
  int64_t row = 0;
  for (const TensorView& shard : shards) {
    add_product(shard.transposed(), b.rows(row, shard.dim(0)), c.data());
    row += shard.dim(0);
  }
  return c;
}

}  // namespace overlace::ops
