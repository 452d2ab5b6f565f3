#include "python/csrc/operands.h"

namespace overlace_torch {
namespace {

/// Without dimensions, so that it does not decide the result's dtype; fp32 holds any small integer and its reciprocal
/// better than 16 bits do.
Tensor factor_of(const Tensor& like, double factor) {
  const std::vector<int64_t> no_sizes;
  const auto dtype = like.scalar_type() == ScalarType::Double ? ScalarType::Double : ScalarType::Float;
  return torch::stable::fill_(torch::stable::new_empty(like, no_sizes, dtype), factor);
}

/// How messages about two tensors begin.
std::string both_of(const Group& group, const Tensor& a, std::string_view a_name, const Argument& argument,
                    const Tensor& b) {
  return Argument{argument.op, a_name}.of_op() + " is " + shape_of(a) + " on rank " + std::to_string(group.rank) +
         ", " + argument.text() + " is " + shape_of(b) + ": ";
}

Tensor multiply(const char* name, const Tensor& t, double factor) {
  std::array<StableIValue, 2> stack{torch::stable::detail::from(t), torch::stable::detail::from(factor_of(t, factor))};
  TORCH_ERROR_CODE_CHECK(torch_call_dispatcher(name, "Tensor", stack.data(), TORCH_ABI_VERSION));
  return torch::stable::detail::to<Tensor>(stack[0]);
}

}  // namespace

void check_matrix(const Argument& argument, const Tensor& t) {
  if (t.dim() != 2)
    refuse(argument.of_op() + " is " + shape_of(t) + ", wanted two dimensions; overlace.ops." +
           std::string(argument.op) + " takes more");
  (void)dtype_of(argument, t.scalar_type());
}

void check_factors(const Group& group, const Tensor& a, std::string_view a_name, const Argument& argument,
                   const Tensor& b, int64_t parts) {
  check_matrix(argument, b);
  if (a.size(1) * parts != b.size(0))
    refuse(both_of(group, a, a_name, argument, b) + "K " + (parts > 1 ? std::to_string(parts) + " x " : "") +
           std::to_string(a.size(1)) + " != " + std::to_string(b.size(0)) + ", wanted the same");
  check_alike(group, a, a_name, argument, b);
}

void check_alike(const Group& group, const Tensor& a, std::string_view a_name, const Argument& argument,
                 const Tensor& b) {
  if (a.scalar_type() != b.scalar_type())
    refuse(both_of(group, a, a_name, argument, b) + "dtypes " + name_of(a.scalar_type()) + " and " +
           name_of(b.scalar_type()) + ", wanted one");
}

void check_my_rows(const Group& group, const Argument& argument, const Tensor& t,
                   const std::vector<int64_t>& row_offsets) {
  check_row_offsets(group, argument.op, row_offsets);
  if (row_offsets.empty()) return;
  const auto rank = static_cast<size_t>(group.rank);
  const int64_t mine = row_offsets[rank + 1] - row_offsets[rank];
  if (mine != t.size(0))
    refuse(argument.of_op() + " is " + shape_of(t) + " on rank " + std::to_string(group.rank) +
           ", row_offsets give it " + std::to_string(mine) + " rows, wanted " + std::to_string(t.size(0)));
}

void check_bias(const Argument& argument, const Tensor& bias, int64_t n) {
  if (bias.dim() != 1 || bias.size(0) != n)
    refuse(argument.of_op() + " is " + shape_of(bias) + ", wanted [" + std::to_string(n) + "]");
}

void check_operands(const Group& group, std::string_view op, const Tensor& a, const Tensor& b,
                    const std::optional<Tensor>& bias, int64_t parts) {
  check_device(group, {op, "a"}, a);
  check_device(group, {op, "b"}, b);
  if (bias.has_value()) check_device(group, {op, "bias"}, *bias);
  check_matrix({op, "a"}, a);
  check_factors(group, a, "a", {op, "b"}, b, parts);
  if (bias.has_value()) check_bias({op, "bias"}, *bias, b.size(1));
}

int64_t rows_of_rank(const Group& group, std::string_view op, const Tensor& a,
                     const std::vector<int64_t>& row_offsets) {
  check_row_offsets(group, op, row_offsets);
  if (row_offsets.empty()) {
    if (a.size(0) % group.size != 0)
      refuse(std::string(op) + ": a is " + shape_of(a) + ", scatter_dim 0: " + std::to_string(a.size(0)) +
             ", wanted a multiple of " + std::to_string(group.size) + " ranks; row_offsets split it otherwise");
    return a.size(0) / group.size;
  }
  if (row_offsets.back() != a.size(0))
    refuse(std::string(op) + ": a is " + shape_of(a) + ", row_offsets end with " + std::to_string(row_offsets.back()) +
           ", wanted " + std::to_string(a.size(0)));
  const auto rank = static_cast<size_t>(group.rank);
  return row_offsets[rank + 1] - row_offsets[rank];
}

void check_activation(std::string_view op, std::string_view activation, bool has_swiglu) {
  if (activation == "none" || (has_swiglu && activation == "swiglu")) return;
  fail(OVL_NOT_SUPPORTED, std::string(op) + ": activation is '" + std::string(activation) + "', only 'none'" +
                              (has_swiglu ? " and 'swiglu' are" : " is") + " there; overlace.ops." + std::string(op) +
                              " has others");
}

bool is_average(std::string_view op, std::string_view reduce_op) {
  if (reduce_op != "sum" && reduce_op != "avg")
    refuse(std::string(op) + ": reduce_op is '" + std::string(reduce_op) + "', wanted 'sum' or 'avg'");
  return reduce_op == "avg";
}

void scale_in_place(Tensor& t, double factor) { (void)multiply("aten::mul_", t, factor); }

Tensor scaled(const Tensor& t, double factor) { return multiply("aten::mul", t, factor); }

}  // namespace overlace_torch
