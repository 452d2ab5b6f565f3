// From the boxes of a gemm instance to as few products as possible.
#include <optional>

#include "src/exec/program.h"
#include "src/spec/operators.h"

namespace overlace::exec {
namespace {

bool flag(const spec::Params& params, std::string_view name) {
  const auto it = params.find(name);
  return it != params.end() && std::holds_alternative<bool>(it->second) && std::get<bool>(it->second);
}

int64_t byte_distance(const TensorView& from, const TensorView& to) {
  return static_cast<const char*>(to.data) - static_cast<const char*>(from.data);
}

int64_t row_bytes(const TensorView& t) { return t.stride(0) * static_cast<int64_t>(dtype_bytes(t.dtype)); }

/// `next` continues the rows of `t`.
bool touches(const TensorView& t, const TensorView& next) { return byte_distance(t, next) == t.dim(0) * row_bytes(t); }

/// Distance from `t` to `next` in elements if it is a whole, positive number.
std::optional<int64_t> spacing(const TensorView& t, const TensorView& next) {
  const int64_t bytes = byte_distance(t, next), element = static_cast<int64_t>(dtype_bytes(t.dtype));
  if (bytes <= 0 || bytes % element != 0) return std::nullopt;
  return bytes / element;
}

/// A empty product (no columns of K) has no address to compare.
bool has_memory(const GemmBlock& block) { return block.a.data != nullptr && block.c.data != nullptr; }

void append(std::vector<GemmBlock>* blocks, const GemmBlock& next) {
  if (!blocks->empty() && has_memory(next) && has_memory(blocks->back())) {
    GemmBlock& last = blocks->back();
    if (touches(last.a, next.a) && touches(last.c, next.c)) {
      last.a.sizes[0] += next.a.dim(0);
      last.c.sizes[0] += next.c.dim(0);
      return;
    }
  }
  blocks->push_back(next);
}

/// Joins runs of equally spaced blocks of one size.
std::vector<GemmBlock> batched(const std::vector<GemmBlock>& blocks) {
  std::vector<GemmBlock> out;
  for (const GemmBlock& next : blocks) {
    if (!out.empty() && out.back().c.dim(0) == next.c.dim(0) && has_memory(next) && has_memory(out.back())) {
      GemmBlock& run = out.back();
      const std::optional<int64_t> a = spacing(run.a, next.a), c = spacing(run.c, next.c);
      const bool starts = run.batch == 1;
      const bool continues = a == run.batch * run.batch_stride_a && c == run.batch * run.batch_stride_c;
      if (a && c && (starts || continues)) {
        if (starts) run.batch_stride_a = *a, run.batch_stride_c = *c;
        ++run.batch;
        continue;
      }
    }
    out.push_back(next);
  }
  return out;
}

}  // namespace

double GemmBlock::flops() const {
  return 2.0 * static_cast<double>(batch) * static_cast<double>(c.dim(0)) * static_cast<double>(c.dim(1)) *
         static_cast<double>(a.dim(1));
}

base::Result<std::vector<GemmBlock>> gemm_blocks(const Call& call, const Team& team, const spec::Instance& instance) {
  const spec::Task& task = call.program.task(instance);
  const auto bad = [&](std::string_view why) {
    return base::error(Errc::bad_schedule, "{}: a gemm task reads a, b and perhaps bias and writes c; {}",
                       instance.id(call.program.schedule), why);
  };
  const size_t reads = instance.reads.size();
  if (reads < 2 || reads > 3 || instance.writes.size() != 1) return bad("the number of regions differs");
  if (instance.reads[1].size() != 1 || (reads == 3 && instance.reads[2].size() != 1)) return bad("b or bias is no box");
  if (instance.reads[0].size() != instance.writes[0].size()) return bad("a and c have different numbers of boxes");
  GemmBlock block;
  block.accumulate = flag(task.params, "accumulate");
  block.a_is_km = spec::sums_rows(task);
  if (block.a_is_km && instance.reads[0].size() != 1) return bad("rows of several boxes of a are summed");
  block.b = view_of(call, team, instance.reads[1][0]);
  const auto layout = task.params.find("b_layout");
  if (layout != task.params.end() && layout->second == spec::Param(std::string("nk"))) block.b = block.b.transposed();
  if (reads == 3) block.bias = view_of(call, team, instance.reads[2][0]);
  std::vector<GemmBlock> blocks;
  for (size_t i = 0; i < instance.reads[0].size(); ++i) {
    if (instance.writes[0][i].empty()) continue;
    block.a = view_of(call, team, instance.reads[0][i]);
    if (block.a_is_km && block.a.ndim == 2) block.a = block.a.transposed();
    block.c = view_of(call, team, instance.writes[0][i]);
    if (block.a.ndim != 2 || block.c.ndim != 2 || block.a.dim(0) != block.c.dim(0))
      return bad("rows of a and c differ");
    if (block.accumulate && block.a.dim(1) == 0) continue;
    append(&blocks, block);
  }
  return batched(blocks);
}

}  // namespace overlace::exec
