#include "src/ops/common/reference.h"

#include <cmath>

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

std::vector<double> gemm_sum_reference(const std::vector<TensorView>& a, const std::vector<TensorView>& b,
                                       const TensorView& bias) {
  const int64_t m = a[0].dim(0), n = b[0].dim(1);
  std::vector<double> sum(static_cast<size_t>(m * n));
  for (size_t rank = 0; rank < a.size(); ++rank) add_product(a[rank], b[rank], sum.data());
  add_bias(bias, m, n, sum.data());
  return sum;
}

std::vector<double> rms_norm_reference(const std::vector<double>& x, const TensorView& weight, double eps) {
  const auto columns = static_cast<size_t>(weight.numel());
  std::vector<double> out(x);
  for (size_t row = 0; columns > 0 && row < x.size() / columns; ++row) {
    double squares = 0;
    for (size_t j = 0; j < columns; ++j) squares += x[row * columns + j] * x[row * columns + j];
    const double scale = 1 / std::sqrt(squares / static_cast<double>(columns) + eps);
    for (size_t j = 0; j < columns; ++j) out[row * columns + j] *= scale * element(weight, 0, static_cast<int64_t>(j));
  }
  return out;
}

}  // namespace overlace::ops
