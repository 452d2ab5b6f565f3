// The experts of one rank, on the rows of its pool.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "overlace/tensor.h"
#include "src/base/status.h"
#include "src/ops/moe/route.h"

namespace overlace::ops::moe {

/// Rows that a call owns, zeros at first.
class Rows {
 public:
  Rows() = default;
  Rows(DType dtype, int64_t count, int64_t columns)
      : dtype_(dtype), count_(count), columns_(columns), bytes_(static_cast<size_t>(count) * row_bytes()) {}
  TensorView view() { return TensorView::contiguous(bytes_.data(), dtype_, {count_, columns_}); }
  size_t row_bytes() const { return static_cast<size_t>(columns_) * dtype_bytes(dtype_); }
  char* row(int64_t i) { return bytes_.data() + static_cast<size_t>(i) * row_bytes(); }
  int64_t count() const { return count_; }

 private:
  DType dtype_ = DType::fp32;
  int64_t count_ = 0, columns_ = 0;
  std::vector<char> bytes_;
};

enum class Activation { silu, gelu_tanh, gelu_erf, relu };
base::Result<Activation> activation_of(std::string_view name);
/// In fp32.
float activate(Activation kind, float value);
/// Its derivative; that of relu at 0 is 0.
float slope(Activation kind, float value);

struct Experts {
  TensorView w1{}, w2{}, b1{}, b2{};  // as of MoeArgs
  Activation activation = Activation::silu;
  bool is_gated = true;
};

/// Matrix e of a stack of matrices (E, rows, cols).
TensorView matrix_of(const TensorView& stack, int64_t e);

/// Row e of a matrix (E_loc, n) as floats; zeros if it is not defined.
std::vector<float> bias_of(const TensorView& biases, int64_t e, int64_t n);

/// c (P, N) of a (P, K) and b (E_loc, N, K): rows of expert e are multiplied by b[e]^T. Padding rows are not written.
base::Status grouped_gemm(const PoolLayout& pool, const TensorView& a, const TensorView& b, const TensorView& c);

/// y (P, H) of the rows x (P, H), with the weight of each row: h = w act(x w1^T + b1), or w act(gate) up, rounded once;
/// y = h w2^T + w b2, rounded once. Products, activations and weights in fp32.
base::Result<Rows> run_experts(const Experts& experts, const PoolLayout& pool, const TensorView& x,
                               std::span<const float> weights);

/// Where the gradients of the weights go, each as the weight is; what is not defined is not computed.
struct ExpertGrads {
  TensorView dw1{}, dw2{}, db1{}, db2{};
};
struct RowGrads {
  Rows dx{};                      // (P, H)
  std::vector<float> dweights{};  // (P)
};
/// The gradients of run_experts, of which nothing was kept: q = dy w2; dweight = <q, h> + <dy, b2>; dh = w q; [dg du]
/// by the activation, rounded once; dx = [dg du] w1, rounded once; dw1 = [dg du]^T x, dw2 = dy^T (w h), of w h as
/// forward rounds it. dy (P, H). Products and sums in fp32, sums of biases in fp32 in the order of rows.
base::Result<RowGrads> run_experts_grad(const Experts& experts, const PoolLayout& pool, const TensorView& x,
                                        const TensorView& dy, std::span<const float> weights, const ExpertGrads& to);

}  // namespace overlace::ops::moe
