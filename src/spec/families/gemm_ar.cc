// gemm_ar, and gemm_ar_norm, which is the same up to the sums and has a task more.
#include <algorithm>
#include <cmath>
#include <utility>

#include "src/base/format.h"
#include "src/spec/families/families.h"

namespace overlace::spec {
namespace {

/// Tables of grouped rows: chunk s * G + p belongs to owner p, so the owners take turns and group s is G chunks that
/// touch. The owner's slots hold its chunks one behind the other. Returns the rows of the owner that has most.
int64_t add_groups(Schedule* out, const OpSpec& op, const FamilyOptions& options) {
  const int64_t groups = options.degree, ranks = op.ranks;
  const std::vector<int64_t> cut = cut_evenly(op.m, groups * ranks, options.align);
  std::vector<int64_t> chunk, place;
  int64_t most = 0;
  for (int64_t p = 0; p < ranks; ++p) {
    int64_t rows = 0;
    for (int64_t s = 0; s < groups; ++s) {
      chunk.push_back(s * ranks + p);
      place.push_back(rows);
      rows += cut[static_cast<size_t>(chunk.back()) + 1] - cut[static_cast<size_t>(chunk.back())];
    }
    most = std::max(most, rows);
  }
  out->tables["cut"] = cut;
  out->tables["chunk"] = std::move(chunk);
  out->tables["place"] = std::move(place);
  return most;
}

/// My reduced rows to everybody's Z. Z needs no credit: my broadcast follows the arrival of a peer's partials, which
/// that peer sent after it had done with the call before.
void add_broadcast(Schedule* out, const Reduction& sum, const std::string& from, const std::string& after) {
  std::vector<Loop> loops = sum.loops;
  loops.push_back(peers());
  Task broadcast = copy("broadcast", "ce_queues+(p-1)%ce_queues", sum.s + "*G+p", std::move(loops),
                        box(from, sum.piece.of("r", sum.s)), box_at("Z", "(r-p)%G", sum.piece.of("r", sum.s)));
  broadcast.deps = {after};
  broadcast.sets = {set_at("ready", sum.s, "(r-p)%G")};
  out->tasks.push_back(std::move(broadcast));
}

/// The remote rows from Z to Y: peers never touch a caller's buffer.
Task copy_out_of(const Reduction& sum, Expr queue, Expr order) {
  const std::string shard(kOther);
  Region from = box("Z", sum.piece.of(shard, sum.s)), to = box("Y", sum.piece.of(shard, sum.s));
  from.each = to.each = others();
  return copy("copy_out", std::move(queue), std::move(order), sum.loops, from, to);
}

/// Group by group: GEMMs, transfers to the owners, sums, broadcasts. The sums share the GEMMs' lane, so that a backend
/// with one stream for all sm lanes does not keep them to the end: group s is summed behind what the group after it
/// sends, which covers its last transfer, and taken from Z two groups later.
template <bool kIsFused>
void grouped(Schedule* out, const OpSpec& op, const FamilyOptions& options) {
  const Reduction sum{{.is_grouped = true}, {chunks()}, "s"};
  add_slots(out, op, add_groups(out, op, options));
  out->buffers.push_back({"Z", Space::symmetric, op.out_dtype, {"M", "N"}, 2});
  out->signals.push_back({"ready", "q"});

  const auto product = [&](const char* id, const char* order, const std::string& shard,
                           const std::optional<Loop>& each = {}) {
    const Range rows = sum.piece.of(shard)[0];
    Region a = box("A", {rows, all("K")}), p = box("P", {rows, all("N")});
    a.each = p.each = each;
    return gemm(op, id, order, std::move(a), b_operand(op), std::move(p), false);
  };
  if (kIsFused) {  // the chunks of a group touch: one GEMM
    Task group = product("gemm", "8*s", "p", Loop{"p", 0, "G"});
    group.loops = {chunks()};
    out->tasks.push_back(std::move(group));
  } else {
    Task remote = product("gemm_remote", "8*s", "((r+p)%G)");
    remote.loops = {chunks(), peers()};
    out->tasks.push_back(std::move(remote));
    Task own = product("gemm_own", "8*s+4", "r");
    own.loops = {chunks()};
    out->tasks.push_back(std::move(own));
  }
  add_scatter_copies(out, options, sum.piece, {kIsFused ? "gemm" : "gemm_remote"});
  Task reduce = sum_of_sources(op, sum.piece, sum.loops, sum.s);
  reduce.queue = 0;
  reduce.order = "8*(s+1)+1";
  reduce.deps = {kIsFused ? "gemm" : "gemm_own"};
  out->tasks.push_back(std::move(reduce));
  add_broadcast(out, sum, "Y", "reduce");

  // A copy lane cannot wait for peers on GPUs: `take` moves nothing and waits for it.
  Task take = finish(op, "take", "8*(s+2)+2", "Z", "ready", "");
  out->tasks.push_back(std::move(take));
  Task copy_out = copy_out_of(sum, "2*ce_queues", "s");
  copy_out.deps = {"take"};
  out->tasks.push_back(std::move(copy_out));
}

/// One kernel: gemm_rs of its name, then the sums of each group of tiles to everybody's Z, and theirs from Z to Y. Z
/// needs no credit, as in add_broadcast.
void slot_sums(Schedule* out, const OpSpec& op, const FamilyOptions& options) {
  add_tma_slot(out, op, options);
  out->buffers.push_back({"Z", Space::symmetric, op.out_dtype, {"M", "N"}, 2});
  out->signals.push_back({"ready", "q*strips"});
  const std::string peer = "((r+p)%G)", group = kGroupOfTiles;
  const std::vector<Range> mine = {chunk_rows("r"), slab_columns("j")}, theirs = {chunk_rows(peer), slab_columns("j")};
  Task broadcast = copy("broadcast", 1, "(" + group + ")*G+p", {chunks(), strips(), peers()}, box("Y", mine),
                        box_at("Z", peer, mine));
  broadcast.deps = {"sum_own"};
  broadcast.sets = {set_at("ready", group, peer)};
  Task take = copy("copy_out", 0, "G+2", {chunks(), strips(), peers()}, box("Z", theirs), box("Y", theirs));
  take.waits = {wait_for("ready", group, peer)};
  for (Task* task : {&broadcast, &take}) {
    task->engine = Engine::sm;
    task->wait_by = WaitBy::kernel;
    out->tasks.push_back(std::move(*task));
  }
}

/// gemm_rs up to the sums, which then go to all.
template <Scatter kHow>
void scattered(Schedule* out, const OpSpec& op, const FamilyOptions& options) {
  out->buffers.push_back({"Z", Space::symmetric, op.out_dtype, {"M", "N"}, 2});
  const Reduction sum = add_scatter(out, op, options, kHow);
  out->signals.push_back({"ready", "q"});
  if (kHow == Scatter::comm || kHow == Scatter::limit) {
    add_broadcast(out, sum, "Z", "finish");
    out->tasks.push_back(finish(op, "finish_z", "1+q+s", "Z", "ready", ""));
    return;
  }
  add_broadcast(out, sum, "Y", "reduce");
  // Behind the reductions on an sm lane: it waits for the peers' rows, which no copy lane can do on GPUs.
  Task copy_out = copy_out_of(sum, 1, "q+1+" + sum.s);
  copy_out.engine = Engine::sm;
  copy_out.waits = {wait_each("ready", sum.s, "(r+p)%G", peers())};
  out->tasks.push_back(std::move(copy_out));
}
/// What is measured beside families for hosts, too.
template <Scatter kHow, Hosts kOverHosts>
void measured(Schedule* out, const OpSpec& op, const FamilyOptions& options) {
  options.hosts > 1 ? make_hierarchical<kOverHosts>(out, op, options) : scattered<kHow>(out, op, options);
}
void one_shot(Schedule* out, const OpSpec& op, const FamilyOptions&) { add_one_shot(out, op); }

constexpr Arg kGemmArArgs[] = {
    {.name = "A", .call = "a", .rows = "M", .columns = "K", .doc = "left factor, K of this rank"},
    {.name = "B", .call = "b", .rows = "K", .columns = "N", .has_layout = true, .doc = "right factor, K of this rank"},
    {.name = "Y",
     .call = "out",
     .role = Role::output,
     .rows = "M",
     .columns = "N",
     .why = "to take a b",
     .doc = "sum over all ranks"},
    {.name = "bias", .call = "bias", .role = Role::bias, .rows = "N", .doc = "added once, to each row of the sum"},
    kScaleOfA,
    kScaleOfB};

constexpr Arg kNormArgs[] = {
    kGemmArArgs[0],
    kGemmArArgs[1],
    {.name = "residual",
     .call = "residual",
     .rows = "M",
     .columns = "N",
     .why = "as the sum",
     .doc = "added to the rounded sum; the same on all ranks"},
    {.name = "weight",
     .call = "norm_weight",
     .rows = "N",
     .why = "to take N of b",
     .doc = "factors of the normalized columns"},
    {.name = "Y",
     .call = "out",
     .role = Role::output,
     .rows = "M",
     .columns = "N",
     .why = "to take a b",
     .doc = "sum over all ranks, plus bias and residual"},
    {.name = "normed",
     .call = "normed",
     .role = Role::output,
     .rows = "M",
     .columns = "N",
     .why = "as out",
     .doc = "rows of out, each divided by the root of the mean of its squares plus eps, times norm_weight"},
    kGemmArArgs[3]};
constexpr FieldDef kNormFields[] = {{"eps", FieldType::real, "added to the mean of squares; above 0"}};

/// Behind the sums, which are in Y: rows need all columns, and what peers get is read from Y before it changes.
void add_norm(Schedule* out, const OpSpec&) {
  const std::vector<Range> whole = {all("M"), all("N")};
  Task norm =
      reduce("norm", 2, 0, {}, {box("Y", whole), box("residual", whole), box("weight", {all("N")})}, box("Y", whole));
  norm.writes.push_back(box("normed", whole));
  norm.params["norm"] = true;
  const auto is_y = [](const Region& region) { return region.buffer == "Y"; };
  for (const Task& task : out->tasks) {
    const bool touches = std::any_of(task.reads.begin(), task.reads.end(), is_y) ||
                         std::any_of(task.writes.begin(), task.writes.end(), is_y);
    if (touches) norm.deps.push_back(task.id);
  }
  if (norm.deps.empty())  // what is measured has no sums: behind the products, or not at all
    for (const Task& task : out->tasks)
      if (task.kind == Kind::gemm) norm.deps.push_back(task.id);
  if (!norm.deps.empty()) out->tasks.push_back(std::move(norm));
}

std::string refuse_norm(const OpSpec& op) {
  if (op.dtype != op.out_dtype)
    return base::format("out is {}, wanted {} as a: residual and results have one type", dtype_name(op.out_dtype),
                        dtype_name(op.dtype));
  const double eps = std::get<double>(op.fields.at("eps"));
  const double used = op.dtype == DType::fp64 ? eps : static_cast<float>(eps);
  return used > 0 && std::isfinite(used) ? "" : base::format("eps is {}, wanted a finite number above 0", eps);
}
std::string refuse_call(const OpSpec& op, int, std::span<const TensorView>, bool) { return refuse_norm(op); }

Meaning norm_meaning(const Schedule& schedule, int rank, int ranks) {
  Meaning out = dense_meaning(schedule, rank, ranks);
  out.inputs.push_back({.buffer = "residual", .num_residuals = 1});
  Held& sum = out.outputs.front();
  sum.num_residuals = 1;
  Held normed = sum;
  normed.buffer = "normed";
  normed.is_normed = true;
  out.outputs.push_back(std::move(normed));
  return out;
}

using enum ClosedForm;
constexpr FamilyDef kGemmArFamilies[] = {
    whole("library", library, degree_of_one, make_scatter_library),
    whole("serial", serial, degree_of_one, measured<Scatter::serial, Hosts::serial>),
    whole("shard_p2p", per_shard, nullptr, scattered<Scatter::per_shard>),
    cut("uniform_fused_1d", all_shards, 3, chunk_degrees, scattered<Scatter::all_shards>),
    cut("hetero_fused_1d", other_shards, 2, batch_degrees, scattered<Scatter::other_shards>),
    cut("hetero_unfused_1d", per_shard, 1, chunk_degrees, scattered<Scatter::per_shard>),
    cut("uniform_fused_2d", slabs, 0, slab_degrees, scattered<Scatter::slabs>),
    // These broadcast what the groups before sum up.
    cut("grouped_fused_1d", group, 0, chunk_degrees, grouped<true>),
    cut("grouped_unfused_1d", group_shards, 4, chunk_degrees, grouped<false>),
    whole("one_shot", small_m_kernel, small_m_degrees, one_shot),
    with_defaults(cut("tma_slot", tile_kernel, 0, band_kernel_degrees, slot_sums), align_to_tiles),
    cut("hierarchical", ClosedForm::hosts, 5, nullptr, make_hierarchical<Hosts::overlapped>),
    bound("compute", Purpose::compute, make_scatter_compute),
    bound("comm", Purpose::comm, measured<Scatter::comm, Hosts::comm>),
    bound("limit", Purpose::limit, measured<Scatter::limit, Hosts::limit>),
};

}  // namespace

constinit const OperatorDef kGemmAr = {.name = "gemm_ar",
                                       .summary = "Y = sum of A B over all ranks, + bias: GEMM, then AllReduce",
                                       .suffix = "_ar",
                                       .args = kGemmArArgs,
                                       .families = kGemmArFamilies,
                                       .flow = {.passes = 2},
                                       .local_param = "K",
                                       .knows_hosts = true,
                                       .make_alone = make_dense_alone,
                                       .meaning = dense_meaning};
constinit const OperatorDef kGemmArNorm = {
    .name = "gemm_ar_norm",
    .summary =
        "Y = sum of A B over all ranks, + bias, + residual, and its rows normalized: GEMM, AllReduce, then RMSNorm",
    .suffix = "_ar_norm",
    .args = kNormArgs,
    .fields = kNormFields,
    .families = kGemmArFamilies,
    .flow = {.passes = 2, .norms = true},
    .local_param = "K",
    .knows_hosts = true,
    .make_alone = make_dense_alone,
    .complete = add_norm,
    .refuse = refuse_norm,
    .meaning = norm_meaning,
    .check_data = refuse_call};

}  // namespace overlace::spec
