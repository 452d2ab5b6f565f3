#include "src/ops/gemm_core/cpu.h"

#include <algorithm>
#include <vector>

#include "src/exec/gemm.h"
#include "src/ops/reduce/bodies.h"
#include "src/spec/tile_order_pod.h"

namespace overlace::ops::gemm_core {
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

/// One call of the body.
class Part {
 public:
  explicit Part(const exec::BodyContext& context)
      : context_(context), made_(context.part->waits.size(), 0), to_(context.writes[0][0]) {
    const auto param = [&](const char* name) {
      const auto found = context.task.params.find(name);
      return found == context.task.params.end() ? spec::Param(false) : found->second;
    };
    const bool is_nk = param("b_layout") == spec::Param(std::string("nk"));
    has_bias_ = param("bias") == spec::Param(true);
    if (!context.reads[0].empty()) {
      a_ = context.reads[0][0];
      b_ = is_nk ? context.reads[1][0].transposed() : context.reads[1][0];
      slabs_ = {0, a_.dim(1)};
    }
    waits_by_slab_ = param("arrival") == spec::Param(std::string("k_slab"));
    if (waits_by_slab_) slabs_ = context.schedule.tables.at("slab");
    accumulator_ = to_.dtype == DType::fp64 || a_.dtype == DType::fp64 ? DType::fp64 : DType::fp32;
    sums_.resize(static_cast<size_t>(kTile * kTile) * dtype_bytes(accumulator_));
    rounded_.resize(static_cast<size_t>(kTile * kTile) * dtype_bytes(to_.dtype));
  }

  base::Status run() {
    const int64_t offsets[] = {0, to_.dim(0)}, columns = to_.dim(1);
    const TileOrder order = make_tile_order(TileOrderKind::linear, 0, 1, offsets, kTile,
                                            static_cast<int32_t>((columns + kTile - 1) / kTile));
    for (int32_t index = 0; index < count_tiles(order); ++index) {
      const TileCoord at = tile_at(order, index);
      const int64_t row = first_row(order, at), col = int64_t{at.n} * kTile;
      OVERLACE_TRY(
          tile({row, std::min<int64_t>(kTile, to_.dim(0) - row), col, std::min<int64_t>(kTile, columns - col)}));
    }
    return {};
  }

  static constexpr int64_t kAll = -1;
  /// The waits of that slot, and those for an earlier epoch; each once.
  base::Status wait(int64_t slot) {
    const exec::PartAccess& part = *context_.part;
    for (size_t i = 0; i < made_.size(); ++i) {
      if (made_[i] != 0 || !(slot == kAll || part.waits[i].previous || part.waits[i].slot == slot)) continue;
      made_[i] = 1;
      OVERLACE_TRY(part.wait(i));
    }
    return {};
  }

 private:
  base::Status tile(const Window& at) {
    const TensorView sums = TensorView::contiguous(sums_.data(), accumulator_, {at.rows, at.cols});
    std::fill(sums_.begin(), sums_.end(), 0);
    for (size_t s = 0; s + 1 < slabs_.size(); ++s) {
      const int64_t k = slabs_[s], depth = slabs_[s + 1] - k;
      if (waits_by_slab_) OVERLACE_TRY(wait(static_cast<int64_t>(s)));
      if (depth == 0) continue;
      OVERLACE_TRY(exec::cpu_gemm({.a = cut(a_, {at.row, at.rows, k, depth}),
                                   .b = cut(b_, {k, depth, at.col, at.cols}),
                                   .c = sums,
                                   .accumulate = true}));
    }
    OVERLACE_TRY(wait(kAll));
    ReduceOperands r;
    const auto add = [&](size_t region) {
      for (const TensorView& source : context_.reads[region]) r.sources.push_back(cut(source, at));
    };
    const size_t regions = context_.reads.size() - (has_bias_ ? 1 : 0);
    if (regions > 2) add(2);
    r.sources.push_back(sums);
    if (regions > 3) add(3);
    if (has_bias_) {
      r.bias = context_.reads.back()[0];
      r.bias.data = static_cast<char*>(r.bias.data) + at.col * static_cast<int64_t>(dtype_bytes(r.bias.dtype));
      r.bias.sizes[0] = at.cols;
    }
    r.dst = TensorView::contiguous(rounded_.data(), to_.dtype, {at.rows, at.cols});
    sum_on_cpu(r);
    context_.part->store(r.dst, at.row, at.col);
    return {};
  }

  const exec::BodyContext& context_;
  std::vector<char> made_;
  TensorView a_, b_, to_;
  bool has_bias_ = false, waits_by_slab_ = false;
  std::vector<int64_t> slabs_;
  DType accumulator_ = DType::fp32;
  std::vector<char> sums_, rounded_;
};

}  // namespace

base::Status tiles_on_cpu(const exec::BodyContext& context) {
  if (context.part == nullptr || context.reads.size() < 2 || context.writes.size() != 1) {
    return base::error(Errc::bad_schedule, "{}: a tiles task waits in the kernel, reads a and b, and writes one box",
                       context.task.id);
  }
  if (!context.writes[0].empty()) return Part(context).run();
  // Nothing to compute, but the signals that follow say that all has come.
  for (size_t i = 0; i < context.part->waits.size(); ++i) OVERLACE_TRY(context.part->wait(i));
  return {};
}

}  // namespace overlace::ops::gemm_core
