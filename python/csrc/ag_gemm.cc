// AllGather + GEMM: outs[i] = concat over ranks of a, times bs[i].
#include <torch/csrc/stable/library.h>

#include <tuple>

#include "python/csrc/operands.h"

namespace overlace_torch {
namespace {

constexpr std::string_view kOp = "ag_gemm";

Argument nth(std::string_view name, size_t i) { return {kOp, name, static_cast<int64_t>(i)}; }

/// a (M, K) times b (K, N) plus bias, of rows that are all here.
Tensor local_product(const Tensor& a, const Tensor& b, const Tensor* bias, ScalarType out) {
  const auto wide = [&](const Tensor& t) { return t.scalar_type() == out ? t : torch::stable::to(t, out); };
  std::array<StableIValue, 3> stack{
      torch::stable::detail::from(wide(a)), torch::stable::detail::from(torch::stable::transpose(wide(b), 0, 1)),
      torch::stable::detail::from(bias == nullptr ? std::optional<Tensor>() : std::optional<Tensor>(wide(*bias)))};
  TORCH_ERROR_CODE_CHECK(torch_call_dispatcher("aten::linear", "", stack.data(), TORCH_ABI_VERSION));
  return torch::stable::detail::to<Tensor>(stack[0]);
}

void check_arguments(const Group& group, const Tensor& a, const std::vector<Tensor>& bs,
                     const std::vector<Tensor>& biases, int64_t gather_dim, const std::vector<int64_t>& row_offsets) {
  check_device(group, {kOp, "a"}, a);
  for (size_t i = 0; i < bs.size(); ++i) check_device(group, nth("bs", i), bs[i]);
  for (size_t i = 0; i < biases.size(); ++i) check_device(group, nth("biases", i), biases[i]);
  check_matrix({kOp, "a"}, a);
  if (gather_dim != 0)
    fail(OVL_NOT_SUPPORTED, std::string(kOp) + ": gather_dim is " + std::to_string(gather_dim) +
                                " of a matrix; rows (0) can be gathered, the dimension of the sum cannot yet");
  if (bs.empty()) refuse(std::string(kOp) + ": bs is empty, wanted one matrix or more");
  if (!biases.empty() && biases.size() != bs.size())
    refuse(std::string(kOp) + ": " + std::to_string(biases.size()) + " biases for " + std::to_string(bs.size()) +
           " bs, wanted as many or none");
  for (size_t i = 0; i < bs.size(); ++i) check_factors(group, a, "a", nth("bs", i), bs[i]);
  for (size_t i = 0; i < biases.size(); ++i) check_bias(nth("biases", i), biases[i], bs[i].size(1));
  check_my_rows(group, {kOp, "a"}, a, row_offsets);
}

/// Checks that swiglu has one b of pairs of columns.
void check_pairs(const std::vector<Tensor>& bs) {
  if (bs.size() != 1)
    fail(OVL_NOT_SUPPORTED, std::string(kOp) + ": activation is 'swiglu' of " + std::to_string(bs.size()) +
                                " bs, wanted one; overlace.ops." + std::string(kOp) + " takes several");
  if (bs[0].size(1) % 2 != 0)
    refuse(std::string(kOp) + ": activation is 'swiglu', b is " + shape_of(bs[0]) + ": wanted pairs of columns");
}

/// The gather hides behind the widest product; the others are plain products of what was gathered.
std::tuple<Tensor, std::vector<Tensor>> ag_gemm(const Tensor& given_a, const std::vector<Tensor>& bs,
                                                const std::vector<Tensor>& biases, int64_t gather_dim,
                                                StringHandle given_group, bool return_a,
                                                std::optional<ScalarType> out_dtype, StringHandle given_activation,
                                                const std::vector<int64_t>& row_offsets, StringHandle given_plan) {
  const Text name(given_group), activation(given_activation), plan(given_plan);
  const std::shared_ptr<Group> group = find_group(kOp, name.view());
  const std::lock_guard lock(group->mutex);
  check_activation(kOp, activation.view(), true);
  check_arguments(*group, given_a, bs, biases, gather_dim, row_offsets);
  const bool is_swiglu = activation.view() == "swiglu";
  if (is_swiglu) check_pairs(bs);
  use_current_stream(*group, kOp);

  const size_t widest = widest_of(bs);
  const Tensor a = with_contiguous_rows(given_a), b = with_either_contiguous(bs[widest]);
  const ScalarType out = out_dtype.value_or(a.scalar_type());
  const int64_t m = row_offsets.empty() ? a.size(0) * group->size : row_offsets.back();
  const bool keeps_a = return_a || bs.size() > 1;
  Tensor a_full = new_matrix(a, keeps_a ? m : 0, keeps_a ? a.size(1) : 0, a.scalar_type());
  const Tensor c = new_matrix(a, m, b.size(1) / (is_swiglu ? 2 : 1), out);

  std::vector<ovl_arg> args = {ovl_tensor_arg("a_shard", view_of({kOp, "a"}, a)),
                               ovl_tensor_arg("b", view_of(nth("bs", widest), b)),
                               ovl_tensor_arg("c", view_of({kOp, "out_dtype"}, c))};
  if (!biases.empty()) args.push_back(ovl_tensor_arg("bias", vector_of(nth("biases", widest), biases[widest])));
  if (keeps_a) args.push_back(ovl_tensor_arg("a", view_of({kOp, "a"}, a_full)));
  run(*group, kOp.data(), std::move(args), {row_offsets, plan.c_str(), activation.c_str()});

  std::vector<Tensor> outs;
  for (size_t i = 0; i < bs.size(); ++i)
    outs.push_back(i == widest ? c : local_product(a_full, bs[i], biases.empty() ? nullptr : &biases[i], out));
  if (!return_a && keeps_a) a_full = new_matrix(a, 0, 0, a.scalar_type());
  return {a_full, outs};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(overlace, CPU, m) { m.impl("ag_gemm", TORCH_BOX(&ag_gemm)); }
STABLE_TORCH_LIBRARY_IMPL(overlace, CUDA, m) { m.impl("ag_gemm", TORCH_BOX(&ag_gemm)); }

}  // namespace overlace_torch
