#include "src/ops/moe/experts.h"

#include <algorithm>
#include <cmath>

#include "src/base/half.h"
#include "src/base/nvtx.h"
#include "src/exec/gemm.h"

namespace overlace::ops::moe {
std::vector<float> bias_of(const TensorView& biases, int64_t e, int64_t n) {
  std::vector<float> out(at(n));
  if (!biases.defined()) return out;
  const TensorView row = biases.rows(e, 1);
  base::convert_to_float(row.data, row.dtype, out.data(), n);
  return out;
}

base::Result<Activation> activation_of(std::string_view name) {
  if (name == "silu") return Activation::silu;
  if (name == "gelu_tanh") return Activation::gelu_tanh;
  if (name == "gelu_erf") return Activation::gelu_erf;
  if (name == "relu") return Activation::relu;
  return base::invalid_argument("activation is \"{}\", wanted silu, gelu_tanh, gelu_erf or relu", name);
}

float activate(Activation kind, float value) {
  switch (kind) {
    case Activation::silu:
      return value / (1 + std::exp(-value));
    case Activation::gelu_tanh:
      return 0.5F * value * (1 + std::tanh(0.79788456F * (value + 0.044715F * value * value * value)));
    case Activation::gelu_erf:
      return 0.5F * value * (1 + std::erf(value * 0.70710678F));
    case Activation::relu:
      return value < 0 ? 0 : value;  // what is not a number stays so
  }
  return value;
}

TensorView matrix_of(const TensorView& stack, int64_t e) {
  const auto offset = e * stack.stride(0) * static_cast<int64_t>(dtype_bytes(stack.dtype));
  TensorView out{.data = static_cast<char*>(stack.data) + offset, .dtype = stack.dtype, .ndim = 2};
  out.sizes = {stack.dim(1), stack.dim(2)};
  out.strides = {stack.stride(1), stack.stride(2)};
  return out;
}

base::Status grouped_gemm(const PoolLayout& pool, const TensorView& a, const TensorView& b, const TensorView& c) {
  for (size_t e = 0; e < pool.load.size(); ++e) {
    if (pool.load[e] == 0) continue;
    OVERLACE_TRY(exec::cpu_gemm({.a = a.rows(pool.base[e], pool.load[e]),
                                 .b = matrix_of(b, static_cast<int64_t>(e)).transposed(),
                                 .c = c.rows(pool.base[e], pool.load[e])}));
  }
  return {};
}

base::Result<Rows> run_experts(const Experts& experts, const PoolLayout& pool, const TensorView& x,
                               std::span<const float> weights) {
  const base::NvtxRange range("gemm", [] { return "experts"; });
  const int64_t inter = experts.w2.dim(2), hidden = experts.w2.dim(1);
  Rows before(DType::fp32, pool.rows(), experts.w1.dim(1)), inner(x.dtype, pool.rows(), inter);
  OVERLACE_TRY(grouped_gemm(pool, x, experts.w1, before.view()));
  std::vector<float> h(at(inter));
  for (size_t e = 0; e < pool.load.size(); ++e) {
    const std::vector<float> bias = bias_of(experts.b1, static_cast<int64_t>(e), inter);
    for (int64_t row = pool.base[e]; row < pool.base[e] + pool.load[e]; ++row) {
      const auto* const from = reinterpret_cast<const float*>(before.row(row));
      for (size_t i = 0; i < h.size(); ++i) {
        const float active = activate(experts.activation, experts.is_gated ? from[i] : from[i] + bias[i]);
        h[i] = weights[at(row)] * (experts.is_gated ? active * from[h.size() + i] : active);
      }
      base::convert_from_float(h.data(), inner.row(row), x.dtype, inter);
    }
  }
  Rows sums(DType::fp32, pool.rows(), hidden), y(x.dtype, pool.rows(), hidden);
  OVERLACE_TRY(grouped_gemm(pool, inner.view(), experts.w2, sums.view()));
  for (size_t e = 0; e < pool.load.size(); ++e) {
    const std::vector<float> bias = bias_of(experts.b2, static_cast<int64_t>(e), hidden);
    for (int64_t row = pool.base[e]; row < pool.base[e] + pool.load[e]; ++row) {
      auto* const sum = reinterpret_cast<float*>(sums.row(row));
      if (experts.b2.defined())
        for (size_t i = 0; i < bias.size(); ++i) sum[i] += weights[at(row)] * bias[i];
      base::convert_from_float(sum, y.row(row), x.dtype, hidden);
    }
  }
  return y;
}

}  // namespace overlace::ops::moe
