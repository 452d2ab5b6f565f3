// C (K, N) = gathered A (M, K), transposed, times B (M, N): the sum is over the rows that travel.
#include <utility>

#include "src/spec/families/families.h"

namespace overlace::spec {
namespace {

const Range kWholeShard = {0, "off[r+1]-off[r]"};

/// Where sums of row blocks grow: in C where it is as wide as a sum, else in memory that is converted at the end.
std::string sums_of(Schedule* out, const OpSpec& op) {
  if (op.out_dtype == accumulator(op)) return "C";
  out->buffers.push_back({"acc", Space::local, accumulator(op), {"K", "N"}});
  return "acc";
}

Region whole(const std::string& buffer) { return box(buffer, {all("K"), all("N")}); }

/// Own rows from A at once; then the others' chunk by chunk in the order of arrival, r+1 first, which no timing
/// changes.
void add_row_blocks(Schedule* out, const OpSpec& op) {
  const std::string sums = sums_of(out, op);
  out->tasks.push_back(gemm_of_rows(op, "gemm_own", 0, box("A", {kWholeShard, all("K")}), b_rows(op, shard_rows("r")),
                                    whole(sums), /*adds=*/false));
  const std::string shard = "((r+p)%G)";
  Task remote = gemm_of_rows(op, "gemm_remote", "1+s", box("X", {chunk_rows(shard), all("K")}),
                             b_rows(op, chunk_rows(shard)), whole(sums), /*adds=*/true);
  remote.loops = {chunks(), peers()};
  remote.waits = {wait_for("arrived", "s", shard)};
  Set credit = set_at("credit", 0, shard);
  credit.each = Loop{"z", 0, "max(0,s-q+2)"};
  remote.sets = {credit};
  out->tasks.push_back(std::move(remote));
  if (sums == "C") return;
  out->tasks.push_back(reduce("convert", 0, "q+1", {}, {whole(sums)}, whole("C")));
}

/// Step s takes slab s of the columns of all rows: rows slab s of C, whole sums that are rounded once.
void add_slabs(Schedule* out, const OpSpec& op) {
  add_copy_own(out, /*is_slab=*/true);
  Task step = gemm_of_rows(op, "gemm", "s", box("X", {all("M"), slab_columns()}), b_rows(op, all("M")),
                           box("C", {slab_columns(), all("N")}), /*adds=*/false);
  step.loops = {chunks()};
  step.deps = {"copy_own"};
  step.waits = {wait_each("arrived", "s", "(r+p)%G", peers())};
  step.sets = {credit_at_last()};
  out->tasks.push_back(std::move(step));
}

}  // namespace

Schedule make_ag_wgrad(const OpSpec& op, std::string_view family, const FamilyOptions& options) {
  const bool is_slab = family == "uniform_fused_2d";
  return make_gather(op, family, options, is_slab,
                     [&](Schedule* out) { is_slab ? add_slabs(out, op) : add_row_blocks(out, op); });
}

}  // namespace overlace::spec
