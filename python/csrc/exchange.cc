// GEMM + All-to-All, my block of each rank's a b in rank order; and All-to-All + GEMM, my block of each rank's a times
// b.
#include <torch/csrc/stable/library.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "python/csrc/operands.h"

namespace overlace_torch {
namespace {

constexpr std::string_view kGemmA2a = "gemm_a2a", kA2aGemm = "a2a_gemm";

/// What goes from each rank to each.
struct Exchange {
  const Text name;
  const std::vector<int64_t>&splits, &blocks;

  bool is_cols() const { return name.view() == "cols"; }
};

void check_splits(const Group& group, std::string_view op, const Exchange& x) {
  const auto ranks = static_cast<size_t>(group.size), wanted = x.is_cols() ? ranks : ranks * ranks;
  const std::vector<int64_t>& splits = x.splits;
  if (splits.size() != wanted)
    refuse(std::string(op) + ": splits have " + std::to_string(splits.size()) + " entries, wanted " +
           std::to_string(wanted) + (x.is_cols() ? ": rows of each of " : ": from each of ") + std::to_string(ranks) +
           (x.is_cols() ? " ranks" : " ranks to each"));
  constexpr int64_t kMostRows = int64_t{1} << 40;
  const auto wrong = std::find_if(splits.begin(), splits.end(), [](int64_t n) { return n < 0 || n > kMostRows; });
  if (wrong != splits.end())
    refuse(std::string(op) + ": splits[" + std::to_string(wrong - splits.begin()) + "] is " + std::to_string(*wrong) +
           ", wanted 0 to 2^40");
}

/// The rows that `splits` give this rank's result; those of `a` must be what they say. is_before: a2a_gemm.
int64_t rows_of_result(const Group& group, std::string_view op, const Tensor& a, const Exchange& x, bool is_before) {
  const auto ranks = static_cast<size_t>(group.size), me = static_cast<size_t>(group.rank);
  const int64_t each = a.size(0) / group.size, my_part = each + (group.rank < a.size(0) % group.size ? 1 : 0);
  const std::vector<int64_t>& splits = x.splits;
  if (splits.empty()) return !x.is_cols() ? group.size * my_part : is_before ? my_part : group.size * a.size(0);
  check_splits(group, op, x);
  int64_t mine = 0, rows = 0;
  if (x.is_cols()) {
    mine = splits[me];
    for (const int64_t entry : splits) rows += entry;
    if (is_before) std::swap(mine, rows);
  } else {
    for (size_t p = 0; p < ranks; ++p) {
      mine += splits[me * ranks + p];
      rows += splits[p * ranks + me];
    }
  }
  if (mine != a.size(0))
    refuse(std::string(op) + ": a is " + shape_of(a) + " on rank " + std::to_string(group.rank) + ", splits give it " +
           std::to_string(mine) + " rows, wanted " + std::to_string(a.size(0)));
  return rows;
}

struct Operands {
  Tensor a, b;
  int64_t rows;  // of the result
};

Operands read(Group& group, std::string_view op, const Tensor& a, const Tensor& b, const std::optional<Tensor>& bias,
              const Exchange& x, bool is_before) {
  check_operands(group, op, a, b, bias, is_before && x.is_cols() ? group.size : 1);
  const int64_t rows = rows_of_result(group, op, a, x, is_before);
  use_current_stream(group, op);
  return {with_contiguous_rows(a), with_either_contiguous(b), rows};
}

Tensor gemm_a2a(const Tensor& a, const Tensor& b, const std::optional<Tensor>& bias, StringHandle given_group,
                std::optional<ScalarType> out_dtype, const std::vector<int64_t>& splits, StringHandle given_exchange,
                const std::vector<int64_t>& blocks, StringHandle given_plan) {
  const Text name(given_group), plan(given_plan);
  constexpr std::string_view op = kGemmA2a;
  const Exchange exchange{Text(given_exchange), splits, blocks};
  const std::shared_ptr<Group> group = find_group(op, name.view());
  const std::lock_guard lock(group->mutex);
  const Operands x = read(*group, op, a, b, bias, exchange, /*is_before=*/false);
  const int64_t columns = b.size(1) / (exchange.is_cols() ? group->size : 1);
  Tensor out = new_matrix(a, x.rows, columns, out_dtype.value_or(a.scalar_type()));
  std::vector<ovl_arg> args = {ovl_tensor_arg("a", view_of({op, "a"}, x.a)),
                               ovl_tensor_arg("b", view_of({op, "b"}, x.b)),
                               ovl_tensor_arg("out", view_of({op, "out_dtype"}, out))};
  if (bias.has_value()) args.push_back(ovl_tensor_arg("bias", vector_of({op, "bias"}, *bias)));
  run(*group, op.data(), std::move(args), {{}, plan.c_str(), "none", splits, exchange.name.c_str(), blocks});
  return out;
}

/// The product, and the rows or columns that came: without rows where they are not wanted.
std::tuple<Tensor, Tensor> a2a_gemm(const Tensor& a, const Tensor& b, const std::optional<Tensor>& bias,
                                    StringHandle given_group, bool return_a, std::optional<ScalarType> out_dtype,
                                    const std::vector<int64_t>& splits, StringHandle given_exchange,
                                    const std::vector<int64_t>& blocks, StringHandle given_plan) {
  const Text name(given_group), plan(given_plan);
  constexpr std::string_view op = kA2aGemm;
  const Exchange exchange{Text(given_exchange), splits, blocks};
  const std::shared_ptr<Group> group = find_group(op, name.view());
  const std::lock_guard lock(group->mutex);
  const Operands x = read(*group, op, a, b, bias, exchange, /*is_before=*/true);
  Tensor out = new_matrix(a, x.rows, b.size(1), out_dtype.value_or(a.scalar_type()));
  Tensor received = new_matrix(a, return_a ? x.rows : 0, return_a ? b.size(0) : 0, a.scalar_type());
  std::vector<ovl_arg> args = {ovl_tensor_arg("a_shard", view_of({op, "a"}, x.a)),
                               ovl_tensor_arg("b", view_of({op, "b"}, x.b)),
                               ovl_tensor_arg("c", view_of({op, "out_dtype"}, out))};
  if (bias.has_value()) args.push_back(ovl_tensor_arg("bias", vector_of({op, "bias"}, *bias)));
  if (return_a) args.push_back(ovl_tensor_arg("a", view_of({op, "a"}, received)));
  run(*group, op.data(), std::move(args), {{}, plan.c_str(), "none", splits, exchange.name.c_str(), blocks});
  return {received, out};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(overlace, CPU, m) {
  m.impl(kGemmA2a.data(), TORCH_BOX(&gemm_a2a));
  m.impl(kA2aGemm.data(), TORCH_BOX(&a2a_gemm));
}
STABLE_TORCH_LIBRARY_IMPL(overlace, CUDA, m) {
  m.impl(kGemmA2a.data(), TORCH_BOX(&gemm_a2a));
  m.impl(kA2aGemm.data(), TORCH_BOX(&a2a_gemm));
}

}  // namespace overlace_torch
