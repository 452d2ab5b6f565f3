#include <cmath>
#include <cstring>
#include <utility>

#include "src/base/half.h"
#include "src/base/nvtx.h"
#include "src/exec/gemm.h"
#include "src/ops/moe/experts.h"

namespace overlace::ops::moe {
namespace {

std::vector<float> floats_of(const TensorView& row, int64_t n) {
  std::vector<float> out(at(n));
  base::convert_to_float(row.data, row.dtype, out.data(), n);
  return out;
}

/// One row of the elementwise part. before (I or 2 I), q (I), bias (I), h (I); `dbefore`, as `before`, and h take the
/// weight. Gives <q, h> without it.
float inner_row(const Experts& experts, float weight, const std::vector<float>& bias, const float* before,
                const float* q, std::vector<float>& dbefore, std::vector<float>& h) {
  float dot = 0;
  for (size_t i = 0; i < h.size(); ++i) {
    const float in = experts.is_gated ? before[i] : before[i] + bias[i];
    const float active = activate(experts.activation, in), up = experts.is_gated ? before[h.size() + i] : 1;
    const float dh = weight * q[i];
    dbefore[i] = dh * up * slope(experts.activation, in);
    if (experts.is_gated) dbefore[h.size() + i] = dh * active;
    h[i] = weight * active * up;
    dot += q[i] * active * up;
  }
  return dot;
}

/// a^T b over the rows of each expert: (E_loc, columns of a, columns of b).
base::Status weight_grads(const PoolLayout& pool, const TensorView& a, const TensorView& b, const TensorView& to) {
  if (!to.defined()) return {};
  for (size_t e = 0; e < pool.load.size(); ++e) {
    const TensorView c = matrix_of(to, static_cast<int64_t>(e));
    if (pool.load[e] == 0)
      for (int64_t row = 0; row < c.dim(0); ++row)
        std::memset(c.rows(row, 1).data, 0, at(c.dim(1)) * dtype_bytes(c.dtype));
    else
      OVERLACE_TRY(exec::cpu_gemm(
          {.a = a.rows(pool.base[e], pool.load[e]).transposed(), .b = b.rows(pool.base[e], pool.load[e]), .c = c}));
  }
  return {};
}

/// The rows of each expert, times a number each, added up: (E_loc, columns of a).
void bias_grads(const PoolLayout& pool, const TensorView& a, std::span<const float> factors, const TensorView& to) {
  if (!to.defined()) return;
  for (size_t e = 0; e < pool.load.size(); ++e) {
    std::vector<float> sum(at(a.dim(1)));
    for (int64_t row = pool.base[e]; row < pool.base[e] + pool.load[e]; ++row) {
      const std::vector<float> values = floats_of(a.rows(row, 1), a.dim(1));
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += (factors.empty() ? 1 : factors[at(row)]) * values[i];
    }
    base::convert_from_float(sum.data(), to.rows(static_cast<int64_t>(e), 1).data, to.dtype, a.dim(1));
  }
}

/// (E_loc, rows, cols) as (E_loc, cols, rows), of the same memory.
TensorView swapped(TensorView stack) {
  std::swap(stack.sizes[1], stack.sizes[2]);
  std::swap(stack.strides[1], stack.strides[2]);
  return stack;
}

}  // namespace

float slope(Activation kind, float value) {
  switch (kind) {
    case Activation::silu: {
      const float s = 1 / (1 + std::exp(-value));
      return s * (1 + value * (1 - s));
    }
    case Activation::gelu_tanh: {
      const float t = std::tanh(0.79788456F * (value + 0.044715F * value * value * value));
      return 0.5F * (1 + t) + 0.5F * value * (1 - t * t) * 0.79788456F * (1 + 3 * 0.044715F * value * value);
    }
    case Activation::gelu_erf:
      return 0.5F * (1 + std::erf(value * 0.70710678F)) + value * 0.39894228F * std::exp(-0.5F * value * value);
    case Activation::relu:
      return value > 0 ? 1 : value == value ? 0 : value;  // what is not a number stays so
  }
  return value;
}

base::Result<RowGrads> run_experts_grad(const Experts& experts, const PoolLayout& pool, const TensorView& x,
                                        const TensorView& dy, std::span<const float> weights, const ExpertGrads& to) {
  const base::NvtxRange range("gemm", [] { return "experts_grad"; });
  const int64_t inter = experts.w2.dim(2), hidden = experts.w2.dim(1), wide = experts.w1.dim(1), rows = pool.rows();
  Rows before(DType::fp32, rows, wide), q(DType::fp32, rows, inter);
  OVERLACE_TRY(grouped_gemm(pool, x, experts.w1, before.view()));
  OVERLACE_TRY(grouped_gemm(pool, dy, swapped(experts.w2), q.view()));

  Rows dbefore(x.dtype, rows, wide), inner(x.dtype, rows, inter);
  RowGrads out{.dx = Rows(x.dtype, rows, hidden), .dweights = std::vector<float>(at(rows))};
  std::vector<float> d(at(wide)), h(at(inter));
  for (size_t e = 0; e < pool.load.size(); ++e) {
    const std::vector<float> b1 = bias_of(experts.b1, static_cast<int64_t>(e), inter);
    const std::vector<float> b2 = bias_of(experts.b2, static_cast<int64_t>(e), hidden);
    for (int64_t row = pool.base[e]; row < pool.base[e] + pool.load[e]; ++row) {
      float dot = inner_row(experts, weights[at(row)], b1, reinterpret_cast<const float*>(before.row(row)),
                            reinterpret_cast<const float*>(q.row(row)), d, h);
      if (experts.b2.defined()) {
        const std::vector<float> of_row = floats_of(dy.rows(row, 1), hidden);
        for (size_t i = 0; i < of_row.size(); ++i) dot += of_row[i] * b2[i];
      }
      out.dweights[at(row)] = dot;
      base::convert_from_float(d.data(), dbefore.row(row), x.dtype, wide);
      base::convert_from_float(h.data(), inner.row(row), x.dtype, inter);
    }
  }
  OVERLACE_TRY(grouped_gemm(pool, dbefore.view(), swapped(experts.w1), out.dx.view()));
  OVERLACE_TRY(weight_grads(pool, dbefore.view(), x, to.dw1));
  OVERLACE_TRY(weight_grads(pool, dy, inner.view(), to.dw2));
  bias_grads(pool, dbefore.view(), {}, to.db1);
  bias_grads(pool, dy, weights, to.db2);
  return out;
}

}  // namespace overlace::ops::moe
