#include <utility>

#include "src/spec/families/families.h"
#include "src/spec/fused_pod.h"
#include "src/spec/operators.h"

namespace overlace::spec {
namespace {

void add_gemm_own(Schedule* out, const OpSpec& op) {
  out->tasks.push_back(gemm(op, "gemm_own", 0, box("A", {all("off[r+1]-off[r]"), all("K")}), b_operand(op),
                            box("C", {shard_rows("r"), all("N")}), true));
}

/// Own shard from A at once; then step s takes chunk s of all other shards in one GEMM.
void add_hetero_fused(Schedule* out, const OpSpec& op) {
  add_gemm_own(out, op);
  const std::string shard(kOther);
  Task remote = gemm(op, "gemm_remote", "1+s", boxes("X", {chunk_rows(shard), all("K")}, others()), b_operand(op),
                     boxes("C", {chunk_rows(shard), all("N")}, others()), true);
  remote.loops = {chunks()};
  remote.waits = {wait_each("arrived", "s", shard, others())};
  remote.sets = {credit_at_last()};
  out->tasks.push_back(std::move(remote));
}

/// Own shard from A at once; then one GEMM per chunk in the order of arrival, r+1 first.
void add_hetero_unfused(Schedule* out, const OpSpec& op) {
  add_gemm_own(out, op);
  const std::string shard = "((r+p)%G)";
  Task remote = gemm(op, "gemm_remote", "1+s", box("X", {chunk_rows(shard), all("K")}), b_operand(op),
                     box("C", {chunk_rows(shard), all("N")}), true);
  remote.loops = {chunks(), peers()};
  remote.waits = {wait_for("arrived", "s", shard)};
  Set credit = set_at("credit", 0, shard);
  credit.each = Loop{"z", 0, "max(0,s-q+2)"};
  remote.sets = {credit};
  out->tasks.push_back(std::move(remote));
}

/// Step s takes chunk s of every shard, the own one among them, in one GEMM.
void add_uniform_1d(Schedule* out, const OpSpec& op) {
  add_copy_own(out, op, /*is_slab=*/false);
  const Loop sources = {"p", 0, "G"};
  Task step = gemm(op, "gemm", "s", boxes("X", {chunk_rows("p"), all("K")}, sources), b_operand(op),
                   boxes("C", {chunk_rows("p"), all("N")}, sources), true);
  step.loops = {chunks()};
  step.deps = {"copy_own"};
  step.waits = {wait_each("arrived", "s", "(r+p)%G", peers())};
  step.sets = {credit_at_last()};
  out->tasks.push_back(std::move(step));
}

/// Step s adds columns slab s of all rows to a wide accumulator, which is converted once at the end: rounding C at each
/// step would cost accuracy.
void add_uniform_2d(Schedule* out, const OpSpec& op) {
  out->buffers.push_back({"acc", Space::local, accumulator(op), {"M", "N"}});
  add_copy_own(out, op, /*is_slab=*/true);
  auto step = [&](const char* id, Loop loop, bool accumulate) {
    Task task = gemm(op, id, "s", box("X", {all("M"), slab_columns()}), b_depth(op, slab_columns()),
                     box("acc", {all("M"), all("N")}), false);
    task.loops = {std::move(loop)};
    task.deps = {"copy_own"};
    if (accumulate) {
      task.params["accumulate"] = true;
      task.combine = Combine::add;
    }
    task.waits = {wait_each("arrived", "s", "(r+p)%G", peers())};
    task.sets = {credit_at_last()};
    out->tasks.push_back(std::move(task));
  };
  step("gemm_first", {"s", 0, 1}, false);
  step("gemm_add", {"s", 1, "q"}, true);
  Task convert = reduce("convert", 0, "q", {}, {box("acc", {all("M"), all("N")})}, box("C", {all("M"), all("N")}));
  if (op.bias) {
    convert.params["bias"] = true;
    convert.reads.push_back(box("bias", {all("N")}));
  }
  out->tasks.push_back(std::move(convert));
}

/// The gathered rows may be a result where every rank has some: then no peer begins the call after next, whose rows go
/// where these are, before this rank has begun the next one, behind the copy out of these. (k_slab; one_shot, in which
/// ranks without rows are waited for, too, does as that does.)
void keep_gathered(Schedule* out, const OpSpec& op) {
  if (has_empty_shard(op)) out->params.erase("gathered");
}

/// One kernel: warps that have nothing else to do push my rows, slab by slab of K, while tiles of my rows are computed;
/// then tiles of the others', slab by slab. Sums stay where they are until the last slab.
void add_k_slab(Schedule* out, const OpSpec& op) {
  Task& push = out->tasks.back();
  push.engine = Engine::sm;
  push.queue = 0;
  push.wait_by = WaitBy::kernel;
  push.waits = {credit_of("credit", "(r-p)%G")};
  push.sets[0].add = kShares;

  const std::string shard = "((r+p)%G)";
  const Loop only_at_last = {"z", 0, "max(0,s-q+2)"};
  const auto part = [&](const char* id, Expr order, std::vector<Loop> loops, Region a, bool is_own) {
    Task task = tiles(op, id, 1, std::move(order), std::move(a), is_own ? b_operand(op) : b_depth(op, slab_columns()),
                      box("C", {shard_rows(is_own ? "r" : shard), all("N")}));
    task.loops = std::move(loops);
    if (op.bias) add_bias(&task, all("N"));
    if (is_own) return task;
    if (op.bias) task.reads.back().each = only_at_last;
    Wait slab = wait_for("arrived", "s", shard);
    slab.at_least = int64_t{kShares};
    task.waits = {std::move(slab)};
    task.sets = {set_at("credit", 0, shard)};
    task.sets[0].each = only_at_last;
    return task;
  };
  const Region gathered = box("X", {shard_rows(shard), slab_columns()});
  out->tasks.push_back(part("tiles_own", 0, {}, box("A", {all("off[r+1]-off[r]"), all("K")}), true));
  out->tasks.push_back(part("tiles_first", "p*q+s", {peers(), {"s", 0, 1}}, gathered, false));
  Task more = part("tiles_add", "p*q+s", {peers(), {"s", 1, "q"}}, gathered, false);
  more.combine = Combine::add;
  out->tasks.push_back(std::move(more));
  out->params["transport"] = std::string("store_own");
  out->params["items"] = std::string("rotated");
  keep_gathered(out, op);
}

/// One kernel: my rows to all ranks, me among them, and tiles of all rows once all have come. No credit: who sends in a
/// call has got the call before from all, which they sent after they had ended the one before that.
void add_one_shot_gather(Schedule* out, const OpSpec& op) {
  out->signals = {{"arrived", 1}};
  Task& push = out->tasks.back();
  push.queue = 0;
  push.waits.clear();
  push.sets[0].add = kShares;
  add_copy_own(out, op, /*is_slab=*/false);
  out->tasks.back().queue = 0;
  for (Task& task : out->tasks) {
    task.engine = Engine::sm;
    task.wait_by = WaitBy::kernel;
  }
  Task whole = tiles(op, "tiles", 1, 0, box("X", {all("M"), all("K")}), b_operand(op), box("C", {all("M"), all("N")}));
  if (op.bias) add_bias(&whole, all("N"));
  whole.deps = {"copy_own"};
  whole.waits = {wait_each("arrived", 0, "(r+p)%G", peers())};
  whole.waits[0].at_least = int64_t{kShares};
  out->tasks.push_back(std::move(whole));
  out->params["transport"] = std::string("one_shot");
  keep_gathered(out, op);
}

/// All rows travel, in slabs of K where `kIsSlab`; `kAdd` adds what uses them.
template <auto kAdd, bool kIsSlab = false>
void gathered(Schedule* out, const OpSpec& op, const FamilyOptions& options) {
  add_gather(out, op, options, kIsSlab);
  kAdd(out, op);
}

constexpr Arg kAgGemmArgs[] = {
    {.name = "A",
     .call = "a_shard",
     .rows = "off[r+1]-off[r]",
     .columns = "K",
     .why = "as c's rows are split",
     .doc = "rows of this rank of the left factor"},
    {.name = "B",
     .call = "b",
     .rows = "K",
     .columns = "N",
     .has_layout = true,
     .doc = "right factor, columns of this rank"},
    {.name = "C",
     .call = "c",
     .role = Role::output,
     .rows = "M",
     .columns = "N",
     .why = "to take N of b",
     .doc = "result for all ranks' rows; with SwiGLU (M, N / 2)"},
    {.name = "bias", .call = "bias", .role = Role::bias, .rows = "N", .doc = "added to each row"},
    kGathered,
    {.name = "A_scale",
     .call = "a_scale",
     .role = Role::scale,
     .rows = "off[r+1]-off[r]",
     .columns = "1",
     .why = "as a_shard's rows",
     .doc = "fp32, for fp8: of each row of a_shard; or (1), the same on all ranks"},
    kScaleOfB};

using enum ClosedForm;
constexpr FamilyDef kAgGemmFamilies[] = {
    kGatherLibrary,
    kGatherSerial,
    whole("shard_p2p", per_shard, nullptr, gathered<add_hetero_unfused>),
    cut("uniform_fused_1d", all_shards, 0, chunk_degrees, gathered<add_uniform_1d>),  // copies local rows for nothing
    cut("hetero_fused_1d", other_shards, 2, batch_degrees, gathered<add_hetero_fused>),
    cut("hetero_unfused_1d", per_shard, 1, chunk_degrees, gathered<add_hetero_unfused>),
    cut("uniform_fused_2d", slabs, 0, slab_degrees, gathered<add_uniform_2d, true>),
    with_defaults(cut("k_slab", slab_kernel, 0, slab_kernel_degrees, gathered<add_k_slab, true>), align_to_slabs),
    whole("one_shot", small_m_kernel, small_m_degrees, gathered<add_one_shot_gather>),
    cut("hierarchical", ClosedForm::hosts, 5, nullptr, make_hierarchical<Hosts::overlapped>),
    kGatherBounds[0],
    kGatherBounds[1],
    kGatherBounds[2],
};

}  // namespace

constinit const OperatorDef kAgGemm = {.name = "ag_gemm",
                                       .summary = "C = act(gathered A times B + bias): AllGather, then GEMM",
                                       .args = kAgGemmArgs,
                                       .families = kAgGemmFamilies,
                                       .flow = {.gathers = true},
                                       .local_param = "N",
                                       .knows_hosts = true,
                                       .takes_activation = true,
                                       .make_alone = make_dense_alone,
                                       .complete = add_swiglu,
                                       .meaning = dense_meaning};

}  // namespace overlace::spec
