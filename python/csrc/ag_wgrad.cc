// Gradients of the weights behind a gather: outs[i] = (concat over ranks of x)^T dys[i]. For a caller that kept its own
// rows only. The gather goes first: nothing hides it yet.
#include <torch/csrc/stable/library.h>

#include "python/csrc/operands.h"

namespace overlace_torch {
namespace {

const std::string kOp = "ag_wgrad";

void check_arguments(const Group& group, const Tensor& x, const std::vector<Tensor>& dys, int64_t gather_dim,
                     const std::vector<int64_t>& row_offsets, const std::string& plan) {
  check_matrix({kOp, "x"}, x);
  if (gather_dim != 0)
    fail(OVL_NOT_SUPPORTED, kOp + ": gather_dim is " + std::to_string(gather_dim) + " of a matrix, wanted rows (0)");
  if (!plan.empty() && plan != "family=library")
    fail(OVL_NOT_SUPPORTED, kOp + ": plan is '" + plan + "', only 'family=library' is there yet");
  if (dys.empty()) refuse(kOp + ": dys is empty, wanted one matrix or more");
  check_my_rows(group, kOp, "x", x, row_offsets);
  const int64_t m = row_offsets.empty() ? x.size(0) * group.size : row_offsets.back();
  for (size_t i = 0; i < dys.size(); ++i) {
    const std::string name = "dys[" + std::to_string(i) + "]";
    check_matrix({kOp, name}, dys[i]);
    check_alike(group, kOp, x, "x", dys[i], name);
    if (dys[i].size(0) != m)
      refuse(kOp + ": " + name + " is " + shape_of(dys[i]) + ", wanted the " + std::to_string(m) +
             " rows of all ranks");
  }
}

/// (M, K): the rows of all ranks. A product without columns sends them.
Tensor gathered(Group& group, const Tensor& given, int64_t m, const std::vector<int64_t>& row_offsets) {
  const Tensor x = with_contiguous_rows(given);
  const auto make = [&](int64_t rows, int64_t columns) { return new_matrix(x, rows, columns, x.scalar_type()); };
  const Tensor full = make(m, x.size(1)), nothing = make(x.size(1), 0), c = make(m, 0);
  auto args = sized<ovl_ag_gemm_args>();
  args.a_shard = view_of({kOp, "x"}, x);
  args.b = view_of({kOp, "x"}, nothing);
  args.c = view_of({kOp, "x"}, c);
  args.a = view_of({kOp, "x"}, full);
  args.row_offsets = row_offsets.empty() ? nullptr : row_offsets.data();
  ovl_schedule* const schedule = schedule_of(group, {"ag_gemm", m, 0, x.size(1), args.a_shard.dtype, args.c.dtype,
                                                     layout_of(args.b), false, true, row_offsets, "family=library"});
  check(ovl_ag_gemm(group.channel, &args, schedule));
  return full;
}

std::vector<Tensor> ag_wgrad(const Tensor& x, const std::vector<Tensor>& dys, int64_t gather_dim,
                             const std::string& group_name, const std::vector<int64_t>& row_offsets,
                             const std::string& plan) {
  const std::shared_ptr<Group> group = find_group(kOp, group_name);
  const std::lock_guard lock(group->mutex);
  check_arguments(*group, x, dys, gather_dim, row_offsets, plan);
  use_current_stream(*group, kOp, x);
  const int64_t m = row_offsets.empty() ? x.size(0) * group->size : row_offsets.back();
  const Tensor full = torch::stable::transpose(gathered(*group, x, m, row_offsets), 0, 1);
  std::vector<Tensor> outs;
  for (const Tensor& dy : dys) {
    std::array<StableIValue, 2> stack{torch::stable::detail::from(full), torch::stable::detail::from(dy)};
    TORCH_ERROR_CODE_CHECK(torch_call_dispatcher("aten::mm", "", stack.data(), TORCH_ABI_VERSION));
    outs.push_back(torch::stable::detail::to<Tensor>(stack[0]));
  }
  return outs;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(overlace, CPU, m) { m.impl("ag_wgrad", TORCH_BOX(&ag_wgrad)); }
STABLE_TORCH_LIBRARY_IMPL(overlace, CUDA, m) { m.impl("ag_wgrad", TORCH_BOX(&ag_wgrad)); }

}  // namespace overlace_torch
