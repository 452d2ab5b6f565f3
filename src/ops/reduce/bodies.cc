#include "src/ops/reduce/bodies.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "src/base/half.h"
#include "src/spec/operators.h"
#if defined(OVERLACE_HAS_CUDA)
#include "src/ops/reduce/launch.h"
#endif

namespace overlace::ops {
namespace {

/// Columns that are summed before they are rounded; small enough for the stack and the first cache.
constexpr int64_t kBlock = 1024;

void add_row(const TensorView& source, int64_t row, int64_t first, int64_t count, float* sum) {
  std::array<float, kBlock> in;
  const int64_t element = static_cast<int64_t>(dtype_bytes(source.dtype));
  const int64_t pitch = source.ndim == 2 ? source.stride(0) : 0;
  base::convert_to_float(static_cast<const char*>(source.data) + (row * pitch + first) * element, source.dtype,
                         in.data(), count);
  for (int64_t j = 0; j < count; ++j) sum[j] += in[static_cast<size_t>(j)];
}

void add_row(const TensorView& source, int64_t row, int64_t first, int64_t count, double* sum) {
  const int64_t pitch = source.ndim == 2 ? source.stride(0) : 0;
  for (int64_t j = 0; j < count; ++j) {
    sum[j] += base::load_element(source.data, source.dtype, row * pitch + first + j);
  }
}

void round_row(const float* sum, int64_t count, const TensorView& dst, int64_t first) {
  base::convert_from_float(sum, static_cast<char*>(dst.data) + first * static_cast<int64_t>(dtype_bytes(dst.dtype)),
                           dst.dtype, count);
}

void round_row(const double* sum, int64_t count, const TensorView& dst, int64_t first) {
  for (int64_t j = 0; j < count; ++j) base::store_element(dst.data, dst.dtype, first + j, sum[j]);
}

/// Makes one column of each pair: in place, into the first half.
template <class Acc>
void swiglu(Acc* sum, int64_t count) {
  for (int64_t j = 0; j < count / 2; ++j) sum[j] = sum[2 * j] / (1 + std::exp(-sum[2 * j])) * sum[2 * j + 1];
}

/// Row i of dst, which is rounded already. The squares of each block of columns are added by themselves.
template <class Acc>
void norm_row(const ReduceOperands& r, int64_t i) {
  const int64_t columns = r.dst.dim(1);
  std::array<Acc, kBlock> x, weight;
  Acc squares = 0;
  for (int64_t first = 0; first < columns; first += kBlock) {
    const int64_t count = std::min(kBlock, columns - first);
    std::fill_n(x.begin(), count, Acc{0});
    add_row(r.dst, i, first, count, x.data());
    Acc part = 0;
    for (size_t j = 0; j < static_cast<size_t>(count); ++j) part += x[j] * x[j];
    squares += part;
  }
  const Acc scale = 1 / std::sqrt(squares / static_cast<Acc>(columns) + static_cast<Acc>(r.eps));
  for (int64_t first = 0; first < columns; first += kBlock) {
    const int64_t count = std::min(kBlock, columns - first);
    std::fill_n(x.begin(), count, Acc{0});
    std::fill_n(weight.begin(), count, Acc{0});
    add_row(r.dst, i, first, count, x.data());
    add_row(r.weight, 0, first, count, weight.data());
    for (size_t j = 0; j < static_cast<size_t>(count); ++j) x[j] = x[j] * scale * weight[j];
    round_row(x.data(), count, r.normed, i * r.normed.stride(0) + first);
  }
}

template <class Acc>
void sum_rows(const ReduceOperands& r) {
  const int64_t pair = r.activation == spec::Activation::swiglu ? 2 : 1, columns = r.dst.dim(1) * pair;
  std::array<Acc, kBlock> sum;
  for (int64_t i = 0; i < r.dst.dim(0); ++i) {
    for (int64_t first = 0; first < columns; first += kBlock) {
      const int64_t count = std::min(kBlock, columns - first);
      std::fill_n(sum.begin(), count, Acc{0});
      for (const TensorView& source : r.sources) add_row(source, i, first, count, sum.data());
      if (r.bias.defined()) add_row(r.bias, 0, first, count, sum.data());
      if (pair > 1) swiglu(sum.data(), count);
      round_row(sum.data(), count / pair, r.dst, i * r.dst.stride(0) + first / pair);
    }
    if (r.normed.defined()) norm_row<Acc>(r, i);
  }
}

/// The last region that a task with a norm reads, the second that it writes, and eps. Says what they are not.
std::string add_norm(const exec::BodyContext& context, ReduceOperands* r) {
  const auto eps = context.schedule.params.find("eps");
  const auto* value = eps == context.schedule.params.end() ? nullptr : std::get_if<double>(&eps->second);
  if (value == nullptr) return "with parameter norm needs the schedule's parameter eps";
  if (context.reads.size() < 2 || context.reads.back().size() != 1 || context.writes[1].size() != 1)
    return "with parameter norm reads a weight last and writes two boxes";
  r->eps = *value;
  r->weight = context.reads.back()[0];
  r->normed = context.writes[1][0];
  if (r->normed.shape() != r->dst.shape() || r->weight.numel() != r->dst.dim(1))
    return base::format("normalizes {} to {} with a weight of {}", r->dst.shape(), r->normed.shape(),
                        r->weight.shape());
  return "";
}

}  // namespace

base::Result<ReduceOperands> reduce_operands(const exec::BodyContext& context) {
  ReduceOperands r;
  const auto bad = [&](std::string_view why) {
    return base::error(Errc::bad_schedule, "{}: a reduce task {}", context.task.id, why);
  };
  const size_t num_norm = spec::has_norm(context.task) ? 1 : 0;
  if (context.writes.size() != 1 + num_norm || context.writes[0].size() > 1)
    return bad("writes one box, and one more with parameter norm");
  if (context.writes[0].empty()) return r;
  r.dst = context.writes[0][0];
  if (num_norm == 1)
    if (const std::string why = add_norm(context, &r); !why.empty()) return bad(why);
  const auto bias = context.task.params.find("bias");
  const bool has_bias = bias != context.task.params.end() && bias->second == spec::Param(true);
  const size_t num_behind = num_norm + (has_bias ? 1 : 0);
  if (context.reads.size() <= num_behind) return bad("sums at least one source");
  const size_t num_sums = context.reads.size() - num_behind;
  if (has_bias && context.reads[num_sums].size() != 1) return bad("with parameter bias reads the bias last");
  for (size_t region = 0; region < num_sums; ++region) {
    r.sources.insert(r.sources.end(), context.reads[region].begin(), context.reads[region].end());
  }
  if (has_bias) r.bias = context.reads[num_sums][0];
  r.activation = spec::activation_of(context.task.params);
  const int64_t columns = r.dst.dim(1) * spec::columns_per_result(context.task.params);
  if (r.sources.empty()) return bad("sums at least one source");
  for (const TensorView& source : r.sources) {
    if (source.ndim != 2 || source.dim(0) != r.dst.dim(0) || source.dim(1) != columns) {
      return bad(base::format("sums sources of ({}, {}) for its result {}, got {}", r.dst.dim(0), columns,
                              r.dst.shape(), source.shape()));
    }
  }
  return r;
}

void sum_on_cpu(const ReduceOperands& operands) {
  if (operands.dst.dtype == DType::fp64) {
    sum_rows<double>(operands);
  } else {
    sum_rows<float>(operands);
  }
}

base::Status reduce_on_cpu(const exec::BodyContext& context) {
  base::Result<ReduceOperands> r = reduce_operands(context);
  if (!r.ok()) return r.status();
  if (r->dst.defined()) sum_on_cpu(*r);
  return {};
}

#if defined(OVERLACE_HAS_CUDA)
base::Status reduce_on_gpu(const exec::BodyContext& context) {
  base::Result<ReduceOperands> r = reduce_operands(context);
  if (!r.ok()) return r.status();
  if (!r->dst.defined()) return {};
  if (r->normed.defined()) {
    const bool is_one_type = r->normed.dtype == r->dst.dtype && r->weight.dtype == r->dst.dtype &&
                             std::all_of(r->sources.begin(), r->sources.end(),
                                         [&](const TensorView& source) { return source.dtype == r->dst.dtype; });
    if (r->sources.size() != 2 || r->bias.defined() || !is_one_type)
      return base::error(Errc::not_supported, "{}: a norm of {} sources{}, wanted two of its type without a bias",
                         context.task.id, r->sources.size(), r->bias.defined() ? " and a bias" : "");
    return launch_norm({.sum = r->sources[0],
                        .residual = r->sources[1],
                        .weight = r->weight,
                        .out = r->dst,
                        .normed = r->normed,
                        .eps = r->eps,
                        .cuda_stream = context.stream.cuda_stream});
  }
  if (r->sources.size() > static_cast<size_t>(kMaxReduceSources)) {
    return base::error(Errc::not_supported, "{}: {} sources, wanted at most {}, as the kernel takes", context.task.id,
                       r->sources.size(), kMaxReduceSources);
  }
  return launch_reduce({.sources = r->sources.data(),
                        .count = static_cast<int>(r->sources.size()),
                        .bias = r->bias,
                        .dst = r->dst,
                        .is_gated = r->activation == spec::Activation::swiglu,
                        .cuda_stream = context.stream.cuda_stream});
}
#endif

}  // namespace overlace::ops
