#include <algorithm>
#include <utility>

#include "src/base/ceil_div_pod.h"
#include "src/spec/families/families.h"
#include "src/spec/fused_pod.h"
#include "src/spec/operators.h"

namespace overlace::spec {
namespace {

const char* const kOwner = "((r+p)%G)";

std::vector<Range> slot_of(const std::string& source, std::vector<Range> rows_and_columns) {
  rows_and_columns.insert(rows_and_columns.begin(), Range{source, 1});
  return rows_and_columns;
}

/// Groups of tiles as the kernel makes them: bands "cut" of rows, column groups "slab" of columns; q counts the bands.
/// `has_whole_rows`: a band is a group.
void add_groups_of_tiles(Schedule* out, const OpSpec& op, const FamilyOptions& options, int64_t shard_max,
                         bool has_whole_rows = false) {
  const std::vector<int64_t>& off = out->tables.at("off");
  const auto pieces = [](int64_t extent, int64_t piece) { return std::max<int64_t>(base::ceil_div(extent, piece), 1); };
  const auto tile_rows = static_cast<int32_t>(pieces(shard_max, options.align));
  const auto tiles_n = static_cast<int32_t>(pieces(op.n, options.align_columns));
  const auto most = static_cast<int32_t>(options.degree);
  const TileGroups groups = has_whole_rows          ? make_chunk_groups(tile_rows, tiles_n, most)
                            : returns_to_all(op.op) ? make_band_groups(tile_rows, tiles_n, most)
                                                    : make_groups(tile_rows, tiles_n, kTileSwizzle, most);
  const int64_t bands = pieces(tile_rows, groups.rows), band = groups.rows * options.align;
  std::vector<int64_t> cut = {0}, slab = {0};
  for (size_t p = 0; p + 1 < off.size(); ++p)
    for (int64_t i = 1; i <= bands; ++i) cut.push_back(std::min(off[p] + i * band, off[p + 1]));
  for (int64_t j = 1; j <= groups.groups_n; ++j)
    slab.push_back(std::min(j * groups.cols * options.align_columns, op.n));
  out->tables["cut"] = std::move(cut);
  out->tables["slab"] = std::move(slab);
  out->consts["strips"] = int64_t{groups.groups_n};
  out->params["q"] = bands;
  out->params["groups"] = options.degree;
  out->params["tile_m"] = options.align;
  out->params["tile_n"] = options.align_columns;
}

/// Step s computes chunk s of every shard in one GEMM.
void add_uniform_rows(Schedule* out, const OpSpec& op) {
  const Loop owners = {"p", 0, "G"};
  Task step = gemm(op, "gemm", "s", boxes("A", {chunk_rows("p"), all("K")}, owners), b_operand(op),
                   boxes("P", {chunk_rows("p"), all("N")}, owners), false);
  step.loops = {chunks()};
  out->tasks.push_back(std::move(step));
}

/// Step s computes columns slab s of all rows.
void add_uniform_columns(Schedule* out, const OpSpec& op) {
  Task step = gemm(op, "gemm", "s", box("A", {all("M"), all("K")}), b_columns(op, slab_columns()),
                   box("P", {all("M"), slab_columns()}), false);
  step.loops = {chunks()};
  out->tasks.push_back(std::move(step));
}

/// Remote chunks first, the local shard last: it hides the last transfer.
void add_hetero(Schedule* out, const OpSpec& op, const FamilyOptions& options, bool is_fused) {
  const std::string shard = is_fused ? std::string(kOther) : kOwner;
  Region a = box("A", {chunk_rows(shard), all("K")}), p = box("P", {chunk_rows(shard), all("N")});
  if (is_fused) a.each = p.each = others();
  Task remote = gemm(op, "gemm_remote", "s", a, b_operand(op), p, false);
  remote.loops = is_fused ? std::vector<Loop>{chunks()} : std::vector<Loop>{chunks(), peers()};
  out->tasks.push_back(std::move(remote));

  Range rows = shard_rows("r");
  if (options.own_degree > 1) {
    const std::string each = std::to_string(options.degree / options.own_degree);
    const std::string begin = "cut[r*q+j*" + each + "]", end = "cut[r*q+(j+1)*" + each + "]";
    rows = {begin, end + "-" + begin};
  }
  Task own = gemm(op, "gemm_own", "q", box("A", {rows, all("K")}), b_operand(op), box("P", {rows, all("N")}), false);
  if (options.own_degree > 1) own.loops = {{"j", 0, options.own_degree}};
  out->tasks.push_back(std::move(own));
}

template <Scatter kHow>
void scatter_only(Schedule* out, const OpSpec& op, const FamilyOptions& options) {
  add_scatter(out, op, options, kHow);
}
/// What is measured beside families for hosts, too.
template <Scatter kHow, Hosts kOverHosts>
void measured_scatter(Schedule* out, const OpSpec& op, const FamilyOptions& options) {
  options.hosts > 1 ? make_hierarchical<kOverHosts>(out, op, options) : scatter_only<kHow>(out, op, options);
}
void make_one_shot_scatter(Schedule* out, const OpSpec& op, const FamilyOptions&) { add_one_shot(out, op); }

/// One kernel stores tiles into "P" and counts those of each chunk that a peer owns; copy lanes send a chunk once its
/// count is full. Own tiles come last, so that the last transfer hides behind them; sums follow.
void make_tracked(Schedule* out, const OpSpec& op, const FamilyOptions& options) {
  const int64_t shard_max = longest_shard(*out);
  add_groups_of_tiles(out, op, options, shard_max, /*has_whole_rows=*/true);
  add_slots(out, op, shard_max);
  out->signals.push_back({"done", "q*(G-1)", Scope::device});
  out->params["transport"] = std::string("tracked");
  out->params["items"] = std::string("own_last");
  const std::string counter = "s*(G-1)+p-1";  // counter_of_chunk of fused_pod.h

  Task remote = tiles(op, "tiles_remote", 0, "s*G+p", box("A", {chunk_rows(kOwner), all("K")}), b_operand(op),
                      box("P", {chunk_rows(kOwner), all("N")}));
  remote.loops = {chunks(), peers()};
  remote.sets = {set_at("done", counter, "r")};
  Task own = tiles(op, "tiles_own", 0, "q*G", box("A", {shard_rows("r"), all("K")}), b_operand(op),
                   box("P", {shard_rows("r"), all("N")}));
  out->tasks.push_back(std::move(remote));
  out->tasks.push_back(std::move(own));

  const Piece piece;
  add_scatter_copies(out, options, piece, {});
  out->tasks.back().waits.push_back(wait_for("done", counter, "r"));
  Task sum = sum_of_sources(op, piece, {chunks()}, "s");
  sum.deps = {"tiles_own"};
  out->tasks.push_back(std::move(sum));
}

constexpr Arg kGemmRsArgs[] = {
    {.name = "A", .call = "a", .rows = "M", .columns = "K", .doc = "left factor, K of this rank"},
    {.name = "B", .call = "b", .rows = "K", .columns = "N", .has_layout = true, .doc = "right factor, K of this rank"},
    {.name = "Y",
     .call = "out",
     .role = Role::output,
     .rows = "off[r+1]-off[r]",
     .columns = "N",
     .why = "to take this rank's rows of a b",
     .doc = "this rank's rows of the sum over all ranks"},
    {.name = "bias", .call = "bias", .role = Role::bias, .rows = "N", .doc = "added once, to each row of the sum"},
    kScaleOfA,
    kScaleOfB};

using enum ClosedForm;
constexpr FamilyDef kGemmRsFamilies[] = {
    whole("library", library, degree_of_one, make_scatter_library),
    whole("serial", serial, degree_of_one, measured_scatter<Scatter::serial, Hosts::serial>),
    whole("shard_p2p", per_shard, nullptr, scatter_only<Scatter::per_shard>),
    cut("uniform_fused_1d", all_shards, 3, chunk_degrees, scatter_only<Scatter::all_shards>),
    cut("hetero_fused_1d", other_shards, 2, batch_degrees, scatter_only<Scatter::other_shards>),
    cut("hetero_unfused_1d", per_shard, 1, chunk_degrees, scatter_only<Scatter::per_shard>),
    cut("uniform_fused_2d", slabs, 0, slab_degrees, scatter_only<Scatter::slabs>),
    whole("one_shot", small_m_kernel, small_m_degrees, make_one_shot_scatter),
    with_defaults(cut("tma_slot", tile_kernel, 0, tile_kernel_degrees, add_tma_slot), align_to_tiles),
    with_defaults(cut("tracked", tracked_kernel, 0, tracked_kernel_degrees, make_tracked), align_to_tiles),
    cut("hierarchical", ClosedForm::hosts, 5, nullptr, make_hierarchical<Hosts::overlapped>),
    bound("compute", Purpose::compute, make_scatter_compute),
    bound("comm", Purpose::comm, measured_scatter<Scatter::comm, Hosts::comm>),
    bound("limit", Purpose::limit, measured_scatter<Scatter::limit, Hosts::limit>),
};

}  // namespace

void add_one_shot(Schedule* out, const OpSpec& op) {
  const bool is_ar = returns_to_all(op.op);
  out->consts["tokens"] = one_shot_tokens(op.m);
  out->consts["columns"] = one_shot_columns(op.n);
  out->buffers.push_back({"S", Space::symmetric, op.out_dtype, {"G", "tokens", "columns"}, 2});
  out->signals = {{"arrived", 1}};
  out->params["transport"] = std::string("one_shot");
  const Range mine = is_ar ? all("M") : shard_rows("r"), theirs = is_ar ? all("M") : shard_rows(kOwner);

  out->tasks.push_back(tiles(op, "tiles", 1, 0, box("A", {all("M"), all("K")}), b_operand(op),
                             box("S", slot_of("r", {all("M"), all("N")}))));
  Task send = copy("send", 0, "p", {peers()}, box("S", slot_of("r", {theirs, all("N")})),
                   box_at("S", kOwner, slot_of("r", {theirs, all("N")})));
  send.deps = {"tiles"};
  send.sets = {set_at("arrived", 0, kOwner)};
  Task sum = reduce("sum", 1, 1, {}, {boxes("S", slot_of("i", {mine, all("N")}), {"i", 0, "G"})},
                    box("Y", {Range{0, mine.count}, all("N")}));
  sum.deps = {"tiles"};
  sum.waits = {wait_each("arrived", 0, kOwner, peers())};
  if (op.bias) add_bias(&sum, all("N"));
  for (Task* task : {&send, &sum}) {
    task->engine = Engine::sm;
    task->wait_by = WaitBy::kernel;
    out->tasks.push_back(std::move(*task));
  }
}

void add_tma_slot(Schedule* out, const OpSpec& op, const FamilyOptions& options) {
  const int64_t shard_max = longest_shard(*out);
  add_groups_of_tiles(out, op, options, shard_max);
  out->consts["shard_max"] = shard_max;
  out->buffers.push_back({"S", Space::symmetric, op.out_dtype, {"G-1", "shard_max", "N"}, 2});
  out->signals = {{"arrived", "q*strips"}, {"credit", 1}};
  out->params["transport"] = std::string("tma_slot");
  out->params["items"] = std::string("woven");
  const Range strip = slab_columns("j");
  const std::string group = kGroupOfTiles;

  Task remote = tiles(op, "tiles_remote", 0, "p", box("A", {chunk_rows(kOwner), all("K")}), b_columns(op, strip),
                      box_at("S", kOwner, {Range{"G-1-p", 1}, chunk_rows_in_shard(kOwner), strip}));
  remote.loops = {peers(), chunks(), strips()};
  remote.waits = {credit_of("credit", kOwner)};
  remote.sets = {set_at("arrived", group, kOwner)};

  const Region result = box("Y", {returns_to_all(op.op) ? chunk_rows("r") : chunk_rows_in_shard("r"), strip});
  Task own = tiles(op, "tiles_own", 0, "G", box("A", {chunk_rows("r"), all("K")}), b_columns(op, strip), result);
  own.loops = {chunks(), strips()};

  const std::vector<Range> slot = slot_of("(i-r-1)%G", {chunk_rows_in_shard("r"), strip});
  Task sum = reduce("sum_own", 0, "G+1", {chunks(), strips()},
                    {boxes("S", slot, {"i", 0, "r"}), result, boxes("S", slot, {"i", "r+1", "G"})}, result);
  if (op.bias) add_bias(&sum, strip);
  sum.deps = {"tiles_own"};
  sum.waits = {wait_each("arrived", group, "(r+p)%G", peers())};

  const std::vector<Range> nothing = {Range{0, 1}, Range{0, 0}, all("N")};
  Task release = copy("release", 0, "G+3", {}, box("S", nothing), box("S", nothing));
  release.deps = {"sum_own"};
  release.sets = {set_at("credit", 0, "(r+p)%G")};
  release.sets[0].each = peers();
  for (Task* task : {&remote, &own, &sum, &release}) {
    task->engine = Engine::sm;
    task->wait_by = WaitBy::kernel;
    out->tasks.push_back(std::move(*task));
  }
}

std::vector<Range> Piece::of(const std::string& shard, const std::string& s) const {
  if (is_slab) return {shard_rows(shard), slab_columns(s)};
  if (is_grouped) return {grouped_rows(shard, s), all("N")};
  return {chunk_rows(shard, s), all("N")};
}

std::vector<Range> Piece::in_shard(const std::string& shard, const std::string& s) const {
  if (is_slab) return {Range{0, shard_rows(shard).count}, slab_columns(s)};
  if (is_grouped) return {grouped_rows_in_shard(shard, s), all("N")};
  return {chunk_rows_in_shard(shard, s), all("N")};
}

void add_slots(Schedule* schedule, const OpSpec& op, int64_t shard_max) {
  schedule->consts["shard_max"] = shard_max;
  schedule->buffers.push_back({"P", Space::local, op.out_dtype, {"M", "N"}});
  schedule->buffers.push_back({"S", Space::symmetric, op.out_dtype, {"G", "shard_max", "N"}, 2});
  schedule->signals = {{"arrived", "q"}, {"credit", 1}};
}

Task sum_of_sources(const OpSpec& op, const Piece& piece, const std::vector<Loop>& loops, const std::string& s) {
  const auto slot = slot_of("i", piece.in_shard("r", s));
  std::vector<Region> sources = {boxes("S", slot, {"i", 0, "r"}), box("P", piece.of("r", s)),
                                 boxes("S", slot, {"i", "r+1", "G"})};
  const bool is_ar = returns_to_all(op.op);
  if (op.bias) sources.push_back(box("bias", {piece.of("r", s)[1]}));
  Task out =
      reduce("reduce", 1, s, loops, std::move(sources), box("Y", is_ar ? piece.of("r", s) : piece.in_shard("r", s)));
  if (op.bias) out.params["bias"] = true;
  out.waits = {wait_each("arrived", s, "(r+p)%G", peers())};
  Set credit = set_at("credit", 0, "(r+p)%G");
  credit.each = peers_at_last(s);
  out.sets = {credit};
  return out;
}

void add_scatter_copies(Schedule* schedule, const FamilyOptions& options, const Piece& piece,
                        const std::vector<std::string>& deps) {
  Task push = copy("push", lane_of_peer(options), "s*G+p", {chunks(), peers()}, box("P", piece.of(kOwner)),
                   box_at("S", kOwner, slot_of("r", piece.in_shard(kOwner))));
  push.deps = deps;
  push.waits = {credit_from("credit", kOwner)};
  push.sets = {set_at("arrived", "s", kOwner)};
  schedule->tasks.push_back(std::move(push));
}

Reduction add_scatter(Schedule* schedule, const OpSpec& op, const FamilyOptions& options, Scatter how) {
  if (how == Scatter::slabs) cut_slabs(schedule, op.n, options);
  Reduction out{{.is_slab = how == Scatter::slabs}, {chunks()}, "s"};
  add_slots(schedule, op, longest_shard(*schedule));
  if (how == Scatter::comm || how == Scatter::limit) {
    if (how == Scatter::limit) {
      schedule->buffers.push_back({"P0", Space::local, op.out_dtype, {"M", "N"}});
      add_plain_gemm(schedule, op, "A", "P0");
    }
    add_scatter_copies(schedule, options, out.piece, {});
    schedule->tasks.push_back(finish(op, "finish", "1+s", "S", "arrived", "credit"));
    return out;
  }
  std::string own = "gemm", sent = "gemm";
  if (how == Scatter::serial) {
    add_plain_gemm(schedule, op, "A", "P", /*with_bias=*/false);
  } else if (how == Scatter::all_shards) {
    add_uniform_rows(schedule, op);
  } else if (how == Scatter::slabs) {
    add_uniform_columns(schedule, op);
  } else {
    add_hetero(schedule, op, options, how == Scatter::other_shards);
    own = "gemm_own";
    sent = "gemm_remote";
    if (options.own_degree > 1) {
      const int64_t each = options.degree / options.own_degree;
      out.loops = {{"j", 0, options.own_degree}, {"e", 0, each}};
      out.s = "(j*" + std::to_string(each) + "+e)";
    }
  }
  add_scatter_copies(schedule, options, out.piece, {sent});
  Task sum = sum_of_sources(op, out.piece, out.loops, out.s);
  sum.deps = {own};
  schedule->tasks.push_back(std::move(sum));
  return out;
}

void make_scatter_library(Schedule* out, const OpSpec& op, const FamilyOptions&) {
  const bool is_ar = returns_to_all(op.op);
  const Expr rows = is_ar ? Expr("M") : Expr("off[r+1]-off[r]");
  out->buffers.push_back({"P", Space::local, op.out_dtype, {"M", "N"}});
  add_plain_gemm(out, op, "A", "P", /*with_bias=*/false);  // the bias is added once, after the sum
  Task sum;
  sum.id = is_ar ? "all_reduce" : "reduce_scatter";
  sum.kind = Kind::collective;
  sum.order = 1;
  sum.params = {{"collective", sum.id}};
  sum.reads = {box("P", {all("M"), all("N")})};
  sum.writes = {box(op.bias ? "T" : "Y", {Range{0, rows}, all("N")})};
  out->tasks.push_back(std::move(sum));
  if (!op.bias) return;
  out->buffers.push_back({"T", Space::local, op.out_dtype, {rows, "N"}});
  Task bias = reduce("add_bias", 0, 2, {}, {box("T", {Range{0, rows}, all("N")}), box("bias", {all("N")})},
                     box("Y", {Range{0, rows}, all("N")}));
  bias.params["bias"] = true;
  out->tasks.push_back(std::move(bias));
}

void make_scatter_compute(Schedule* out, const OpSpec& op, const FamilyOptions&) {
  out->buffers.push_back({"P", Space::local, op.out_dtype, {"M", "N"}});
  add_plain_gemm(out, op, "A", "P");
}

constinit const OperatorDef kGemmRs = {.name = "gemm_rs",
                                       .summary =
                                           "Y = this rank's rows of the sum of A B over all ranks, + bias: GEMM, then "
                                           "ReduceScatter",
                                       .suffix = "_rs",
                                       .args = kGemmRsArgs,
                                       .families = kGemmRsFamilies,
                                       .local_param = "K",
                                       .knows_hosts = true,
                                       .make_alone = make_dense_alone,
                                       .meaning = dense_meaning};

}  // namespace overlace::spec
