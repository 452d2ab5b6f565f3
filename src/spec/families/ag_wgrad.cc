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

Region whole_gradient(const std::string& buffer) { return box(buffer, {all("K"), all("N")}); }

/// Own rows from A at once; then the others' chunk by chunk in the order of arrival, r+1 first, which no timing
/// changes.
void row_blocks(Schedule* out, const OpSpec& op, const FamilyOptions& options) {
  add_gather(out, op, options, /*is_slab=*/false);
  const std::string sums = sums_of(out, op);
  out->tasks.push_back(gemm_of_rows(op, "gemm_own", 0, box("A", {kWholeShard, all("K")}), b_rows(op, shard_rows("r")),
                                    whole_gradient(sums), /*adds=*/false));
  const std::string shard = "((r+p)%G)";
  Task remote = gemm_of_rows(op, "gemm_remote", "1+s", box("X", {chunk_rows(shard), all("K")}),
                             b_rows(op, chunk_rows(shard)), whole_gradient(sums), /*adds=*/true);
  remote.loops = {chunks(), peers()};
  remote.waits = {wait_for("arrived", "s", shard)};
  Set credit = set_at("credit", 0, shard);
  credit.each = Loop{"z", 0, "max(0,s-q+2)"};
  remote.sets = {credit};
  out->tasks.push_back(std::move(remote));
  if (sums == "C") return;
  out->tasks.push_back(reduce("convert", 0, "q+1", {}, {whole_gradient(sums)}, whole_gradient("C")));
}

/// Step s takes slab s of the columns of all rows: rows slab s of C, whole sums that are rounded once.
void column_slabs(Schedule* out, const OpSpec& op, const FamilyOptions& options) {
  add_gather(out, op, options, /*is_slab=*/true);
  add_copy_own(out, op, /*is_slab=*/true);
  Task step = gemm_of_rows(op, "gemm", "s", box("X", {all("M"), slab_columns()}), b_rows(op, all("M")),
                           box("C", {slab_columns(), all("N")}), /*adds=*/false);
  step.loops = {chunks()};
  step.deps = {"copy_own"};
  step.waits = {wait_each("arrived", "s", "(r+p)%G", peers())};
  step.sets = {credit_at_last()};
  out->tasks.push_back(std::move(step));
}

constexpr Arg kAgWgradArgs[] = {{.name = "A",
                                 .call = "a_shard",
                                 .rows = "off[r+1]-off[r]",
                                 .columns = "K",
                                 .why = "as b's rows are split",
                                 .doc = "rows of this rank, as ag_gemm took them"},
                                {.name = "B",
                                 .call = "b",
                                 .rows = "M",
                                 .columns = "N",
                                 .has_layout = true,
                                 .doc = "gradient of ag_gemm's result, columns of this rank"},
                                {.name = "C",
                                 .call = "c",
                                 .role = Role::output,
                                 .rows = "K",
                                 .columns = "N",
                                 .why = "to take K of a_shard and N of b",
                                 .doc = "gradient of the right factor"},
                                kGathered};

using enum ClosedForm;
constexpr FamilyDef kAgWgradFamilies[] = {
    kGatherLibrary,
    kGatherSerial,
    whole("shard_p2p", per_shard, nullptr, row_blocks),
    cut("hetero_unfused_1d", per_shard, 1, chunk_degrees, row_blocks),
    cut("uniform_fused_2d", slabs, 2, slab_degrees, column_slabs),
    kGatherBounds[0],
    kGatherBounds[1],
    kGatherBounds[2],
};

}  // namespace

constinit const OperatorDef kAgWgrad = {.name = "ag_wgrad",
                                        .summary = "C = gathered A, transposed, times B: AllGather, then GEMM",
                                        .args = kAgWgradArgs,
                                        .families = kAgWgradFamilies,
                                        .flow = {.gathers = true, .sums_rows = true},
                                        .local_param = "N",
                                        .make_alone = make_dense_alone,
                                        .meaning = dense_meaning};

}  // namespace overlace::spec
