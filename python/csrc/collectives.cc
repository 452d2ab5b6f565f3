// The collectives of a team's engine, along any dimension: all_gather, reduce_scatter, all_reduce, all_to_all.
#include <torch/csrc/stable/library.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "python/csrc/operands.h"

namespace overlace_torch {
namespace {

/// A tensor cut along a dimension into one block per rank: (outer, ranks, inner) in memory.
struct Cut {
  std::vector<int64_t> sizes;
  size_t dim = 0;
  int64_t ranks = 1;

  int64_t outer() const {
    return std::accumulate(sizes.begin(), sizes.begin() + static_cast<std::ptrdiff_t>(dim), int64_t{1},
                           std::multiplies<>());
  }
  int64_t inner() const {
    return std::accumulate(sizes.begin() + static_cast<std::ptrdiff_t>(dim), sizes.end(), int64_t{1},
                           std::multiplies<>()) /
           ranks;
  }
};

Cut cut_of(const Group& group, std::string_view op, const Tensor& x, int64_t dim) {
  const Argument argument{op, "x"};
  if (x.dim() == 0) refuse(argument.of_op() + " is [], wanted one dimension or more");
  if (dim < -x.dim() || dim >= x.dim())
    refuse(std::string(op) + ": dim is " + std::to_string(dim) + ", x is " + shape_of(x) + ": wanted " +
           std::to_string(-x.dim()) + " to " + std::to_string(x.dim() - 1));
  Cut cut{{}, static_cast<size_t>(dim < 0 ? dim + x.dim() : dim), group.size};
  for (int64_t i = 0; i < x.dim(); ++i) cut.sizes.push_back(x.size(i));
  return cut;
}

/// The cut of a dimension that must be a multiple of the ranks.
Cut even_cut_of(const Group& group, std::string_view op, const Tensor& x, int64_t dim) {
  Cut cut = cut_of(group, op, x, dim);
  const int64_t size = cut.sizes[cut.dim];
  if (size % group.size != 0)
    refuse(std::string(op) + ": x is " + shape_of(x) + ", dim " + std::to_string(cut.dim) + ": " +
           std::to_string(size) + ", wanted a multiple of " + std::to_string(group.size) + " ranks");
  return cut;
}

/// Block by block in memory: (ranks, outer, inner). A copy where they do not lie so.
Tensor blocks_of(const Tensor& x, const Cut& cut) {
  const Tensor t = torch::stable::contiguous(x);
  if (cut.outer() <= 1) return t;
  const Tensor view = torch::stable::view(t, {cut.outer(), cut.ranks, cut.inner()});
  return torch::stable::contiguous(torch::stable::transpose(view, 0, 1));
}

/// The tensor whose blocks these are; the inverse.
Tensor joined(const Tensor& blocks, const Cut& cut) {
  if (cut.outer() <= 1) return blocks;
  const Tensor out = torch::stable::new_empty(blocks, cut.sizes);
  Tensor to = torch::stable::view(out, {cut.outer(), cut.ranks, cut.inner()});
  const Tensor from = torch::stable::view(blocks, {cut.ranks, cut.outer(), cut.inner()});
  (void)torch::stable::copy_(to, torch::stable::transpose(from, 0, 1));
  return out;
}

int64_t bytes_of(const Tensor& t) { return t.numel() * static_cast<int64_t>(t.element_size()); }

int dtype_of_sum(std::string_view op, const Tensor& x, bool is_average) {
  switch (x.scalar_type()) {
    case ScalarType::Long:
    case ScalarType::Int:
      if (is_average)
        refuse(std::string(op) + ": reduce_op is 'avg' of " + name_of(x.scalar_type()) + ", wanted 'sum'");
      return x.scalar_type() == ScalarType::Long ? OVL_I64 : OVL_I32;
    case ScalarType::Double:
    case ScalarType::Float:
    case ScalarType::Half:
    case ScalarType::BFloat16:
      return dtype_of({op, "x"}, x.scalar_type());
    default:
      refuse(std::string(op) + ": x is " + name_of(x.scalar_type()) +
             ", which cannot be added, wanted float64, float32, bfloat16, float16, int64 or int32");
  }
}

// NOTE: what only moves goes as bytes: any dtype.
Tensor all_gather(const Tensor& x, int64_t dim, StringHandle given_group) {
  const Text name(given_group);
  constexpr std::string_view op = "all_gather";
  const std::shared_ptr<Group> group = find_group(op, name.view());
  const std::lock_guard lock(group->mutex);
  check_device(*group, {op, "x"}, x);
  Cut cut = cut_of(*group, op, x, dim);
  cut.sizes[cut.dim] *= group->size;
  use_current_stream(*group, op);
  const Tensor mine = torch::stable::contiguous(x), blocks = torch::stable::new_empty(x, cut.sizes);
  check(ovl_all_gather(group->channel, mine.data_ptr(), blocks.data_ptr(), bytes_of(mine), OVL_U8));
  return joined(blocks, cut);
}

/// Sizes of blocks along the dimension, one per rank; their sum.
int64_t sum_of_splits(const Group& group, const char* name, const std::vector<int64_t>& splits) {
  const bool fits = splits.size() == static_cast<size_t>(group.size) &&
                    std::all_of(splits.begin(), splits.end(), [](int64_t n) { return n >= 0; });
  if (fits) return std::accumulate(splits.begin(), splits.end(), int64_t{0});
  std::string got;
  for (const int64_t n : splits) got += (got.empty() ? "" : ", ") + std::to_string(n);
  refuse(std::string("all_to_all: ") + name + " are [" + got + "], wanted " + std::to_string(group.size) +
         " numbers, 0 or more");
}

/// Blocks of any length. Another dimension than the first is moved there, and back.
Tensor uneven_all_to_all(const Group& group, const Tensor& x, int64_t dim, const std::vector<int64_t>& send_splits,
                         const std::vector<int64_t>& recv_splits) {
  const Cut cut = cut_of(group, "all_to_all", x, dim);
  const auto axis = static_cast<int64_t>(cut.dim);
  const int64_t sent = sum_of_splits(group, "send_splits", send_splits);
  const int64_t received = sum_of_splits(group, "recv_splits", recv_splits);
  if (sent != x.size(axis))
    refuse("all_to_all: x is " + shape_of(x) + ", dim " + std::to_string(axis) + ", send_splits sum to " +
           std::to_string(sent) + ", wanted " + std::to_string(x.size(axis)));
  const Tensor mine = torch::stable::contiguous(torch::stable::transpose(x, 0, axis));
  std::vector<int64_t> sizes;
  for (int64_t i = 0; i < mine.dim(); ++i) sizes.push_back(mine.size(i));
  const int64_t bytes_of_row =
      std::accumulate(sizes.begin() + 1, sizes.end(), static_cast<int64_t>(x.element_size()), std::multiplies<>());
  sizes[0] = received;
  const Tensor out = torch::stable::new_empty(x, sizes);
  std::vector<int64_t> send_bytes, recv_bytes;
  for (const int64_t n : send_splits) send_bytes.push_back(n * bytes_of_row);
  for (const int64_t n : recv_splits) recv_bytes.push_back(n * bytes_of_row);
  check(ovl_all_to_allv(group.channel, mine.data_ptr(), send_bytes.data(), out.data_ptr(), recv_bytes.data(), OVL_U8));
  return axis == 0 ? out : torch::stable::contiguous(torch::stable::transpose(out, 0, axis));
}

Tensor all_to_all(const Tensor& x, int64_t dim, StringHandle given_group, const std::vector<int64_t>& send_splits,
                  const std::vector<int64_t>& recv_splits) {
  const Text name(given_group);
  constexpr std::string_view op = "all_to_all";
  const std::shared_ptr<Group> group = find_group(op, name.view());
  const std::lock_guard lock(group->mutex);
  check_device(*group, {op, "x"}, x);
  if (!send_splits.empty() || !recv_splits.empty()) {
    use_current_stream(*group, op);
    return uneven_all_to_all(*group, x, dim, send_splits, recv_splits);
  }
  const Cut cut = even_cut_of(*group, op, x, dim);
  use_current_stream(*group, op);
  const Tensor blocks = blocks_of(x, cut), received = torch::stable::new_empty(x, cut.sizes);
  check(ovl_all_to_all(group->channel, blocks.data_ptr(), received.data_ptr(), bytes_of(blocks) / group->size, OVL_U8));
  return joined(received, cut);
}

Tensor reduce_scatter(const Tensor& x, StringHandle given_reduce_op, int64_t dim, StringHandle given_group) {
  const Text reduce_op(given_reduce_op), name(given_group);
  constexpr std::string_view op = "reduce_scatter";
  const std::shared_ptr<Group> group = find_group(op, name.view());
  const std::lock_guard lock(group->mutex);
  check_device(*group, {op, "x"}, x);
  Cut cut = even_cut_of(*group, op, x, dim);
  const bool average = is_average(op, reduce_op.view());
  const int dtype = dtype_of_sum(op, x, average);
  use_current_stream(*group, op);
  const Tensor blocks = blocks_of(x, cut);
  cut.sizes[cut.dim] /= group->size;
  Tensor out = torch::stable::new_empty(x, cut.sizes);
  check(ovl_reduce_scatter(group->channel, blocks.data_ptr(), out.data_ptr(), out.numel(), dtype));
  if (average) scale_in_place(out, 1.0 / group->size);
  return out;
}

Tensor all_reduce(const Tensor& x, StringHandle given_reduce_op, StringHandle given_group) {
  const Text reduce_op(given_reduce_op), name(given_group);
  constexpr std::string_view op = "all_reduce";
  const std::shared_ptr<Group> group = find_group(op, name.view());
  const std::lock_guard lock(group->mutex);
  check_device(*group, {op, "x"}, x);
  const bool average = is_average(op, reduce_op.view());
  const int dtype = dtype_of_sum(op, x, average);
  use_current_stream(*group, op);
  std::vector<int64_t> sizes;
  for (int64_t i = 0; i < x.dim(); ++i) sizes.push_back(x.size(i));
  const Tensor mine = torch::stable::contiguous(x);
  Tensor out = torch::stable::new_empty(x, sizes);
  check(ovl_all_reduce(group->channel, mine.data_ptr(), out.data_ptr(), out.numel(), dtype));
  if (average) scale_in_place(out, 1.0 / group->size);
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(overlace, CPU, m) {
  m.impl("all_gather", TORCH_BOX(&all_gather));
  m.impl("reduce_scatter", TORCH_BOX(&reduce_scatter));
  m.impl("all_reduce", TORCH_BOX(&all_reduce));
  m.impl("all_to_all", TORCH_BOX(&all_to_all));
}
STABLE_TORCH_LIBRARY_IMPL(overlace, CUDA, m) {
  m.impl("all_gather", TORCH_BOX(&all_gather));
  m.impl("reduce_scatter", TORCH_BOX(&reduce_scatter));
  m.impl("all_reduce", TORCH_BOX(&all_reduce));
  m.impl("all_to_all", TORCH_BOX(&all_to_all));
}

}  // namespace overlace_torch
