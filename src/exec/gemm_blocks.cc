// The products of a gemm instance with the memory of one call.
#include <algorithm>

#include "src/exec/program.h"
#include "src/spec/operators.h"

namespace overlace::exec {
namespace {

bool flag(const spec::Params& params, std::string_view name) {
  const auto it = params.find(name);
  return it != params.end() && std::holds_alternative<bool>(it->second) && std::get<bool>(it->second);
}

bool is_nk(const spec::Params& params) {
  const auto it = params.find("b_layout");
  const std::string* const layout = it == params.end() ? nullptr : std::get_if<std::string>(&it->second);
  return layout != nullptr && *layout == "nk";
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
  const size_t scales = spec::num_scales(task), reads = instance.reads.size() - std::min(scales, instance.reads.size());
  if (reads < 2 || reads > 3 || instance.writes.size() != 1) return bad("the number of regions differs");
  if (instance.reads[1].size() != 1 || (reads == 3 && instance.reads[2].size() != 1)) return bad("b or bias is no box");
  if (instance.reads[0].size() != instance.writes[0].size()) return bad("a and c have different numbers of boxes");
  GemmBlock block;
  block.accumulate = flag(task.params, "accumulate");
  block.a_is_km = spec::sums_rows(task);
  if (block.a_is_km && instance.reads[0].size() != 1) return bad("rows of several boxes of a are summed");
  block.b = view_of(call, team, instance.reads[1][0]);
  if (is_nk(task.params)) block.b = block.b.transposed();
  if (reads == 3) block.bias = view_of(call, team, instance.reads[2][0]);
  const bool has_row_scales = spec::scales_of(task.params) == spec::Scales::rows;
  if (scales > 0) {
    const std::vector<spec::Box>&of_a = instance.reads[reads], &of_b = instance.reads[reads + 1];
    if (of_b.size() != 1 || of_a.size() != (has_row_scales ? instance.reads[0].size() : 1))
      return bad("scales have another number of boxes");
    block.b_scale = view_of(call, team, of_b[0]);
    if (!has_row_scales) block.a_scale = view_of(call, team, of_a[0]);
  }
  const std::vector<spec::ProductRows>& products = call.program.products_of(instance);
  std::vector<GemmBlock> blocks;
  blocks.reserve(products.size());
  for (const spec::ProductRows& rows : products) {
    block.a = view_of(call, team, rows.a);
    if (block.a_is_km && block.a.ndim == 2) block.a = block.a.transposed();
    block.c = view_of(call, team, rows.c);
    if (block.a.ndim != 2 || block.c.ndim != 2 || block.a.dim(0) != block.c.dim(0))
      return bad("rows of a and c differ");
    if (block.accumulate && block.a.dim(1) == 0) continue;
    block.batch = rows.batch;
    if (has_row_scales) {  // beside the rows of a, in a buffer of as many
      spec::Box of_rows = instance.reads[reads][0];
      const int row = rows.a.ndim - 2;
      of_rows.begin[0] = rows.a.begin[row], of_rows.count[0] = rows.a.count[row];
      block.a_scale = view_of(call, team, of_rows);
      block.batch_stride_scale = rows.step_a * block.a_scale.stride(0);
    }
    block.batch_stride_a = rows.step_a * block.a.stride(0);
    block.batch_stride_c = rows.step_c * block.c.stride(0);
    blocks.push_back(block);
  }
  return blocks;
}

}  // namespace overlace::exec
