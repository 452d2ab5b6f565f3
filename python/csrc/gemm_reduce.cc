// GEMM + ReduceScatter and GEMM + AllReduce: my rows, or all, of the sum over ranks of a b; of all with residual and
// norm.
#include <torch/csrc/stable/library.h>

#include <tuple>

#include "python/csrc/operands.h"

namespace overlace_torch {
namespace {

/// Both, checked and ready for a call; out is not made yet.
struct Operands {
  Tensor a, b;
  std::optional<Tensor> bias;
  bool average = false;
};

Operands read(Group& group, std::string_view op, const Tensor& a, const Tensor& b, const std::optional<Tensor>& bias,
              std::string_view reduce_op) {
  check_operands(group, op, a, b, bias);
  use_current_stream(group, op);
  Operands x{with_contiguous_rows(a), with_either_contiguous(b), std::nullopt, is_average(op, reduce_op)};
  // The bias is added once, by the owner of a row, before the scale.
  if (bias.has_value()) x.bias = x.average ? scaled(*bias, group.size) : *bias;
  return x;
}

std::vector<ovl_arg> args_of(std::string_view op, const Operands& x, const ovl_tensor& out) {
  std::vector<ovl_arg> args = {ovl_tensor_arg("a", view_of({op, "a"}, x.a)),
                               ovl_tensor_arg("b", view_of({op, "b"}, x.b)), ovl_tensor_arg("out", out)};
  if (x.bias.has_value()) args.push_back(ovl_tensor_arg("bias", vector_of({op, "bias"}, *x.bias)));
  return args;
}

Tensor gemm_rs(const Tensor& a, const Tensor& b, const std::optional<Tensor>& bias, StringHandle given_reduce_op,
               int64_t scatter_dim, StringHandle given_group, std::optional<ScalarType> out_dtype,
               StringHandle given_activation, const std::vector<int64_t>& row_offsets, StringHandle given_plan) {
  const Text reduce_op(given_reduce_op), name(given_group), activation(given_activation), plan(given_plan);
  constexpr std::string_view op = "gemm_rs";
  const std::shared_ptr<Group> group = find_group(op, name.view());
  const std::lock_guard lock(group->mutex);
  check_activation(op, activation.view(), false);
  const Operands x = read(*group, op, a, b, bias, reduce_op.view());
  if (scatter_dim != 0)
    fail(OVL_NOT_SUPPORTED, std::string(op) + ": scatter_dim is " + std::to_string(scatter_dim) +
                                " of a matrix; rows (0) can be scattered, columns of the result cannot yet");
  const int64_t rows = rows_of_rank(*group, op, a, row_offsets);
  Tensor out = new_matrix(a, rows, b.size(1), out_dtype.value_or(a.scalar_type()));

  run(*group, op.data(), args_of(op, x, view_of({op, "out_dtype"}, out)), {row_offsets, plan.c_str()});
  if (x.average) scale_in_place(out, 1.0 / group->size);
  return out;
}

Tensor gemm_ar(const Tensor& a, const Tensor& b, const std::optional<Tensor>& bias, StringHandle given_reduce_op,
               StringHandle given_group, StringHandle given_plan) {
  const Text reduce_op(given_reduce_op), name(given_group), plan(given_plan);
  constexpr std::string_view op = "gemm_ar";
  const std::shared_ptr<Group> group = find_group(op, name.view());
  const std::lock_guard lock(group->mutex);
  const Operands x = read(*group, op, a, b, bias, reduce_op.view());
  Tensor out = new_matrix(a, a.size(0), b.size(1), a.scalar_type());

  run(*group, op.data(), args_of(op, x, view_of({op, "a"}, out)), {{}, plan.c_str()});
  if (x.average) scale_in_place(out, 1.0 / group->size);
  return out;
}

void check_norm(const Group& group, const Tensor& a, const Tensor& b, const Tensor& residual, const Tensor& weight) {
  const Argument of_residual{"gemm_ar_norm", "residual"}, of_weight{"gemm_ar_norm", "norm_weight"};
  check_device(group, of_residual, residual);
  check_device(group, of_weight, weight);
  if (residual.dim() != 2 || residual.size(0) != a.size(0) || residual.size(1) != b.size(1))
    refuse(of_residual.of_op() + " is " + shape_of(residual) + " on rank " + std::to_string(group.rank) + ", wanted [" +
           std::to_string(a.size(0)) + ", " + std::to_string(b.size(1)) + "] as the sum");
  check_alike(group, a, "a", of_residual, residual);
  check_bias(of_weight, weight, b.size(1));
  check_alike(group, a, "a", of_weight, weight);
}

/// The sum with the residual, and its rows normalized.
std::tuple<Tensor, Tensor> gemm_ar_norm(const Tensor& a, const Tensor& b, const Tensor& residual, const Tensor& weight,
                                        const std::optional<Tensor>& bias, double eps, StringHandle given_group,
                                        StringHandle given_plan) {
  const Text name(given_group), plan(given_plan);
  constexpr std::string_view op = "gemm_ar_norm";
  const std::shared_ptr<Group> group = find_group(op, name.view());
  const std::lock_guard lock(group->mutex);
  const Operands x = read(*group, op, a, b, bias, "sum");
  check_norm(*group, a, b, residual, weight);
  const Tensor added = with_contiguous_rows(residual);
  Tensor out = new_matrix(a, a.size(0), b.size(1), a.scalar_type());
  Tensor normed = new_matrix(a, a.size(0), b.size(1), a.scalar_type());

  std::vector<ovl_arg> args = args_of(op, x, view_of({op, "a"}, out));
  args.push_back(ovl_tensor_arg("residual", view_of({op, "residual"}, added)));
  args.push_back(ovl_tensor_arg("norm_weight", given_vector_of({op, "norm_weight"}, weight)));
  args.push_back(ovl_tensor_arg("normed", view_of({op, "a"}, normed)));
  args.push_back(ovl_real_arg("eps", eps));
  run(*group, op.data(), std::move(args), {{}, plan.c_str()});
  return {out, normed};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(overlace, CPU, m) {
  m.impl("gemm_rs", TORCH_BOX(&gemm_rs));
  m.impl("gemm_ar", TORCH_BOX(&gemm_ar));
  m.impl("gemm_ar_norm", TORCH_BOX(&gemm_ar_norm));
}
STABLE_TORCH_LIBRARY_IMPL(overlace, CUDA, m) {
  m.impl("gemm_rs", TORCH_BOX(&gemm_rs));
  m.impl("gemm_ar", TORCH_BOX(&gemm_ar));
  m.impl("gemm_ar_norm", TORCH_BOX(&gemm_ar_norm));
}

}  // namespace overlace_torch
