#include "src/ops/fused/cpu.h"

#include <algorithm>
#include <vector>

#include "src/base/ceil_div_pod.h"
#include "src/exec/gemm.h"
#include "src/ops/reduce/bodies.h"
#include "src/spec/operators.h"
#include "src/spec/tile_order_pod.h"

namespace overlace::ops::fused {
namespace {

constexpr int32_t kTile = 64;

/// Rows and columns of a matrix.
struct Window {
  int64_t row = 0, rows = 0, col = 0, cols = 0;
};
TensorView cut(const TensorView& t, const Window& w) {
  TensorView out = t;
  const int64_t first = w.row * t.stride(0) + w.col * t.stride(1);
  out.data = static_cast<char*>(t.data) + first * static_cast<int64_t>(dtype_bytes(t.dtype));
  out.sizes[0] = w.rows;
  out.sizes[1] = w.cols;
  return out;
}

bool has(const spec::Task& task, std::string_view name, const spec::Param& value) {
  const auto found = task.params.find(name);
  return found != task.params.end() && found->second == value;
}

/// One call of the body.
class Part {
 public:
  explicit Part(const exec::BodyContext& context)
      : context_(context),
        to_(context.writes[0][0]),
        pair_(spec::columns_per_result(context.task.params)),
        columns_(to_.dim(1) * pair_) {
    if (!context.reads[0].empty()) {
      const TensorView& b = context.reads[1][0];
      a_ = context.reads[0][0];
      b_ = has(context.task, "b_layout", std::string("nk")) ? b.transposed() : b;
    }
    const bool is_wide = to_.dtype == DType::fp64;
    std::vector<char>& sums = *context.part->sums;
    if (context.task.combine == spec::Combine::none)
      sums.assign(static_cast<size_t>(to_.dim(0) * columns_) * (is_wide ? 8 : 4), 0);
    sums_ = TensorView::contiguous(sums.data(), is_wide ? DType::fp64 : DType::fp32, {to_.dim(0), columns_});
    rounded_.resize(static_cast<size_t>(kTile * kTile) * dtype_bytes(to_.dtype));
  }

  base::Status run() {
    OVERLACE_TRY(context_.part->wait(false));
    const int64_t offsets[] = {0, to_.dim(0)};
    const TileOrder order = make_tile_order(TileOrderKind::linear, 0, 1, offsets, kTile,
                                            static_cast<int32_t>(base::ceil_div(columns_, kTile)));
    for (int32_t index = 0; index < count_tiles(order); ++index) {
      const TileCoord at = tile_at(order, index);
      const int64_t row = first_row(order, at), col = int64_t{at.n} * kTile;
      const Window window = {row, std::min<int64_t>(kTile, to_.dim(0) - row), col,
                             std::min<int64_t>(kTile, columns_ - col)};
      OVERLACE_TRY(multiply(window));
      if (index == 0) OVERLACE_TRY(context_.part->wait(true));
      store(window);
    }
    return {};
  }

 private:
  base::Status multiply(const Window& at) {
    if (!a_.defined()) return {};
    return exec::cpu_gemm({.a = cut(a_, {at.row, at.rows, 0, a_.dim(1)}),
                           .b = cut(b_, {0, a_.dim(1), at.col, at.cols}),
                           .c = cut(sums_, at),
                           .accumulate = true});
  }

  void store(const Window& at) {
    ReduceOperands r;
    r.sources.push_back(cut(sums_, at));
    if (has(context_.task, "bias", true) && !context_.reads.back().empty()) {
      r.bias = context_.reads.back()[0];
      r.bias.data = static_cast<char*>(r.bias.data) + at.col * static_cast<int64_t>(dtype_bytes(r.bias.dtype));
      r.bias.sizes[0] = at.cols;
    }
    r.activation = spec::activation_of(context_.task.params);
    r.dst = TensorView::contiguous(rounded_.data(), to_.dtype, {at.rows, at.cols / pair_});
    sum_on_cpu(r);
    context_.part->store(r.dst, at.row, at.col / pair_);
  }

  const exec::BodyContext& context_;
  TensorView a_, b_, to_;   // a_ is undefined where K is 0
  int64_t pair_, columns_;  // of sums: as many as become one of to_, and all
  TensorView sums_;
  std::vector<char> rounded_;
};

}  // namespace

base::Status tiles_on_cpu(const exec::BodyContext& context) {
  if (context.part == nullptr || context.reads.size() < 2 || context.writes.size() != 1) {
    return base::error(Errc::bad_schedule, "{}: a tiles task waits in the kernel, reads a and b, and writes one box",
                       context.task.id);
  }
  if (!context.writes[0].empty()) return Part(context).run();
  // Nothing to compute, but the signals that follow say that all has come.
  OVERLACE_TRY(context.part->wait(true));
  return context.part->wait(false);
}

}  // namespace overlace::ops::fused
