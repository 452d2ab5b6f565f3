// Gradients of the weights behind a gather: outs[i] = (concat over ranks of x)^T dys[i]. For a caller that kept its own
// rows only.
#include <torch/csrc/stable/library.h>

#include "python/csrc/operands.h"

namespace overlace_torch {
namespace {

constexpr std::string_view kOp = "ag_wgrad";

Argument nth(std::string_view name, size_t i) { return {kOp, name, static_cast<int64_t>(i)}; }

/// x^T dy, of rows that are all here.
Tensor local_product(const Tensor& x, const Tensor& dy) {
  std::array<StableIValue, 2> stack{torch::stable::detail::from(torch::stable::transpose(x, 0, 1)),
                                    torch::stable::detail::from(dy)};
  TORCH_ERROR_CODE_CHECK(torch_call_dispatcher("aten::mm", "", stack.data(), TORCH_ABI_VERSION));
  return torch::stable::detail::to<Tensor>(stack[0]);
}

void check_arguments(const Group& group, const Tensor& x, const std::vector<Tensor>& dys, int64_t gather_dim,
                     const std::vector<int64_t>& row_offsets) {
  check_device(group, {kOp, "x"}, x);
  for (size_t i = 0; i < dys.size(); ++i) check_device(group, nth("dys", i), dys[i]);
  check_matrix({kOp, "x"}, x);
  if (gather_dim != 0)
    fail(OVL_NOT_SUPPORTED,
         std::string(kOp) + ": gather_dim is " + std::to_string(gather_dim) + " of a matrix, wanted rows (0)");
  if (dys.empty()) refuse(std::string(kOp) + ": dys is empty, wanted one matrix or more");
  check_my_rows(group, {kOp, "x"}, x, row_offsets);
  const int64_t m = row_offsets.empty() ? x.size(0) * group.size : row_offsets.back();
  for (size_t i = 0; i < dys.size(); ++i) {
    const Argument argument = nth("dys", i);
    check_matrix(argument, dys[i]);
    check_alike(group, x, "x", argument, dys[i]);
    if (dys[i].size(0) != m)
      refuse(argument.of_op() + " is " + shape_of(dys[i]) + ", wanted the " + std::to_string(m) + " rows of all ranks");
  }
}

/// The gather hides behind the widest product; the others are plain products of what was gathered.
std::vector<Tensor> ag_wgrad(const Tensor& given_x, const std::vector<Tensor>& dys, int64_t gather_dim,
                             StringHandle given_group, const std::vector<int64_t>& row_offsets,
                             StringHandle given_plan) {
  const Text name(given_group), plan(given_plan);
  const std::shared_ptr<Group> group = find_group(kOp, name.view());
  const std::lock_guard lock(group->mutex);
  check_arguments(*group, given_x, dys, gather_dim, row_offsets);
  use_current_stream(*group, kOp);

  const size_t widest = widest_of(dys);
  const Tensor x = with_contiguous_rows(given_x), dy = with_either_contiguous(dys[widest]);
  const int64_t m = row_offsets.empty() ? x.size(0) * group->size : row_offsets.back(), k = x.size(1);
  const bool keeps_x = dys.size() > 1;
  const Tensor full = new_matrix(x, keeps_x ? m : 0, keeps_x ? k : 0, x.scalar_type());
  const Tensor dw = new_matrix(x, k, dy.size(1), x.scalar_type());

  std::vector<ovl_arg> args = {ovl_tensor_arg("a_shard", view_of({kOp, "x"}, x)),
                               ovl_tensor_arg("b", view_of(nth("dys", widest), dy)),
                               ovl_tensor_arg("c", view_of({kOp, "x"}, dw))};
  if (keeps_x) args.push_back(ovl_tensor_arg("a", view_of({kOp, "x"}, full)));
  run(*group, kOp.data(), std::move(args), {row_offsets, plan.c_str()});

  std::vector<Tensor> outs;
  for (size_t i = 0; i < dys.size(); ++i) outs.push_back(i == widest ? dw : local_product(full, dys[i]));
  return outs;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(overlace, CPU, m) { m.impl("ag_wgrad", TORCH_BOX(&ag_wgrad)); }
STABLE_TORCH_LIBRARY_IMPL(overlace, CUDA, m) { m.impl("ag_wgrad", TORCH_BOX(&ag_wgrad)); }

}  // namespace overlace_torch
