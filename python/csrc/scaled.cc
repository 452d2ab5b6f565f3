// ag_gemm, gemm_rs and gemm_ar of operands of fp8 with scales, which multiply the sums.
#include <torch/csrc/stable/library.h>

#include <tuple>
#include <utility>

#include "python/csrc/operands.h"

namespace overlace_torch {
namespace {

/// What the operators are given, checked and ready for a call but for the result.
struct Operands {
  Tensor a, a_scale, b, b_scale;
  std::optional<Tensor> bias;
};

void check_fp8(const Argument& argument, const Tensor& t) {
  if (t.dim() != 2)
    refuse(argument.of_op() + " is " + shape_of(t) + ", wanted two dimensions; overlace.ops." +
           std::string(argument.op) + " takes more");
  if (!is_fp8(t.scalar_type()))
    refuse(argument.of_op() + " is " + name_of(t.scalar_type()) +
           ", wanted float8_e4m3fn or float8_e5m2 with scales; overlace.ops." +
           std::string(argument.op.substr(0, argument.op.rfind('_'))) + " takes others");
}

void check_scale(const Argument& argument, const Tensor& t) {
  if (t.scalar_type() != ScalarType::Float)
    refuse(argument.of_op() + " is " + name_of(t.scalar_type()) + ", wanted float32");
  if (t.dim() != 1 && t.dim() != 2)
    refuse(argument.of_op() + " is " + shape_of(t) + ", wanted [1], or two dimensions with one for each row");
}

Operands read(Group& group, std::string_view op, const Tensor& a, const Tensor& a_scale, const Tensor& b,
              const Tensor& b_scale, const std::optional<Tensor>& bias) {
  for (const auto& [name, t] :
       {std::pair<std::string_view, const Tensor*>{"a", &a}, {"a_scale", &a_scale}, {"b", &b}, {"b_scale", &b_scale}})
    check_device(group, {op, name}, *t);
  if (bias.has_value()) check_device(group, {op, "bias"}, *bias);
  check_fp8({op, "a"}, a);
  check_fp8({op, "b"}, b);
  check_scale({op, "a_scale"}, a_scale);
  check_scale({op, "b_scale"}, b_scale);
  if (a.size(1) != b.size(0))
    refuse(std::string(op) + ": a is " + shape_of(a) + " on rank " + std::to_string(group.rank) + ", b is " +
           shape_of(b) + ": K " + std::to_string(a.size(1)) + " != " + std::to_string(b.size(0)) + ", wanted the same");
  if (bias.has_value()) check_bias({op, "bias"}, *bias, b.size(1));
  use_current_stream(group, op);
  return {with_contiguous_rows(a), torch::stable::contiguous(a_scale), with_either_contiguous(b),
          torch::stable::contiguous(b_scale), bias};
}

ovl_tensor view_of_scale(const Argument& argument, const Tensor& t) {
  return t.dim() == 1 ? given_vector_of(argument, t) : view_of(argument, t);
}

/// `a_name`, `out_name`: what the library calls them.
std::vector<ovl_arg> args_of(std::string_view op, const Operands& x, const char* a_name, const char* out_name,
                             const Tensor& out) {
  std::vector<ovl_arg> args = {
      ovl_tensor_arg(a_name, fp8_view_of(x.a)), ovl_tensor_arg("a_scale", view_of_scale({op, "a_scale"}, x.a_scale)),
      ovl_tensor_arg("b", fp8_view_of(x.b)), ovl_tensor_arg("b_scale", view_of_scale({op, "b_scale"}, x.b_scale)),
      ovl_tensor_arg(out_name, view_of({op, "out_dtype"}, out))};
  if (x.bias.has_value()) args.push_back(ovl_tensor_arg("bias", vector_of({op, "bias"}, *x.bias)));
  return args;
}

std::tuple<Tensor, Tensor> ag_gemm_scaled(const Tensor& given_a, const Tensor& a_scale, const Tensor& b,
                                          const Tensor& b_scale, const std::optional<Tensor>& bias, int64_t gather_dim,
                                          StringHandle given_group, bool return_a, std::optional<ScalarType> out_dtype,
                                          const std::vector<int64_t>& row_offsets, StringHandle given_plan) {
  const Text name(given_group), plan(given_plan);
  constexpr std::string_view op = "ag_gemm_scaled";
  const std::shared_ptr<Group> group = find_group(op, name.view());
  const std::lock_guard lock(group->mutex);
  const Operands x = read(*group, op, given_a, a_scale, b, b_scale, bias);
  if (gather_dim != 0)
    fail(OVL_NOT_SUPPORTED, std::string(op) + ": gather_dim is " + std::to_string(gather_dim) +
                                " of a matrix; rows (0) can be gathered, the dimension of the sum cannot yet");
  check_my_rows(*group, {op, "a"}, given_a, row_offsets);
  const int64_t m = row_offsets.empty() ? x.a.size(0) * group->size : row_offsets.back();
  const Tensor c = new_matrix(x.a, m, b.size(1), out_dtype.value_or(ScalarType::BFloat16));
  Tensor a_full = new_matrix(x.a, return_a ? m : 0, return_a ? x.a.size(1) : 0, x.a.scalar_type());

  std::vector<ovl_arg> args = args_of(op, x, "a_shard", "c", c);
  if (return_a) args.push_back(ovl_tensor_arg("a", fp8_view_of(a_full)));
  run(*group, "ag_gemm", std::move(args), {row_offsets, plan.c_str()});
  return {a_full, c};
}

/// Both that sum: out is there, and is divided by the ranks for "avg".
void sum(Group& group, std::string_view op, const char* run_op, Operands x, std::string_view reduce_op, Tensor& out,
         const Options& options) {
  const bool is_average = overlace_torch::is_average(op, reduce_op);
  // The bias is added once, by the owner of a row, before the division.
  if (is_average && x.bias.has_value()) x.bias = scaled(*x.bias, group.size);
  run(group, run_op, args_of(op, x, "a", "out", out), options);
  if (is_average) scale_in_place(out, 1.0 / group.size);
}

Tensor gemm_rs_scaled(const Tensor& a, const Tensor& a_scale, const Tensor& b, const Tensor& b_scale,
                      const std::optional<Tensor>& bias, StringHandle given_reduce_op, int64_t scatter_dim,
                      StringHandle given_group, std::optional<ScalarType> out_dtype,
                      const std::vector<int64_t>& row_offsets, StringHandle given_plan) {
  const Text reduce_op(given_reduce_op), name(given_group), plan(given_plan);
  constexpr std::string_view op = "gemm_rs_scaled";
  const std::shared_ptr<Group> group = find_group(op, name.view());
  const std::lock_guard lock(group->mutex);
  Operands x = read(*group, op, a, a_scale, b, b_scale, bias);
  if (scatter_dim != 0)
    fail(OVL_NOT_SUPPORTED, std::string(op) + ": scatter_dim is " + std::to_string(scatter_dim) +
                                " of a matrix; rows (0) can be scattered, columns of the result cannot yet");
  const int64_t rows = rows_of_rank(*group, op, a, row_offsets);
  Tensor out = new_matrix(a, rows, b.size(1), out_dtype.value_or(ScalarType::BFloat16));
  sum(*group, op, "gemm_rs", std::move(x), reduce_op.view(), out, {row_offsets, plan.c_str()});
  return out;
}

Tensor gemm_ar_scaled(const Tensor& a, const Tensor& a_scale, const Tensor& b, const Tensor& b_scale,
                      const std::optional<Tensor>& bias, StringHandle given_reduce_op, StringHandle given_group,
                      std::optional<ScalarType> out_dtype, StringHandle given_plan) {
  const Text reduce_op(given_reduce_op), name(given_group), plan(given_plan);
  constexpr std::string_view op = "gemm_ar_scaled";
  const std::shared_ptr<Group> group = find_group(op, name.view());
  const std::lock_guard lock(group->mutex);
  Operands x = read(*group, op, a, a_scale, b, b_scale, bias);
  Tensor out = new_matrix(a, a.size(0), b.size(1), out_dtype.value_or(ScalarType::BFloat16));
  sum(*group, op, "gemm_ar", std::move(x), reduce_op.view(), out, {{}, plan.c_str()});
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(overlace, CPU, m) {
  m.impl("ag_gemm_scaled", TORCH_BOX(&ag_gemm_scaled));
  m.impl("gemm_rs_scaled", TORCH_BOX(&gemm_rs_scaled));
  m.impl("gemm_ar_scaled", TORCH_BOX(&gemm_ar_scaled));
}
STABLE_TORCH_LIBRARY_IMPL(overlace, CUDA, m) {
  m.impl("ag_gemm_scaled", TORCH_BOX(&ag_gemm_scaled));
  m.impl("gemm_rs_scaled", TORCH_BOX(&gemm_rs_scaled));
  m.impl("gemm_ar_scaled", TORCH_BOX(&gemm_ar_scaled));
}

}  // namespace overlace_torch
