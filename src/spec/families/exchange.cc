// gemm_a2a and a2a_gemm: rows go block by block from each rank to each, behind the product or before it. Blocks may be
// of any length, and empty. Exchanges of columns: exchange_columns.cc.
#include <algorithm>
#include <string>
#include <utility>

#include "src/spec/families/families.h"
#include "src/spec/operators.h"

namespace overlace::spec {
namespace {

constexpr const char* kGot = "got[r+1]-got[r]";

std::string chunk_of(const std::string& from, const std::string& to, const std::string& s) {
  return "(" + from + "*G+" + to + ")*q+" + s;
}
/// Chunk s of the block between two ranks: where it lies in the source's rows, and in the destination's result.
Range sent_rows(const std::string& to, const std::string& s = "s") {
  const std::string chunk = chunk_of("r", to, s);
  return {"cut[" + chunk + "]-off[r]", "cut[" + chunk + "+1]-cut[" + chunk + "]"};
}
Range placed_rows(const std::string& from, const std::string& to, const std::string& s = "s") {
  const std::string chunk = chunk_of(from, to, s);
  return {"place[" + chunk + "]", "cut[" + chunk + "+1]-cut[" + chunk + "]"};
}
/// The whole block that stays here.
Range own_rows() { return {"cut[(r*G+r)*q]-off[r]", "splits[r*G+r]"}; }
Range own_rows_placed() { return {"place[(r*G+r)*q]", "splits[r*G+r]"}; }

Task product(const OpSpec& op, std::string id, Expr order, Region a, Region c) {
  return gemm(op, std::move(id), std::move(order), std::move(a), b_operand(op), std::move(c), /*with_bias=*/true);
}
/// All of my rows.
void add_whole(Schedule* out, const OpSpec& op, const std::string& c, const char* rows = kMyRows) {
  out->tasks.push_back(product(op, "gemm", 0, box("A", {all(rows), all("K")}), box(c, {all(rows), all("N")})));
}
void add_products_buffer(Schedule* out, const OpSpec& op, const std::string& name) {
  out->buffers.push_back({name, Space::local, op.out_dtype, {kMyRows, "N"}});
}

/// Rows of `from` to `inbox` at their destinations, where they lie as in what the exchange makes; signals
/// `arrived[chunk]` and `credit`; transfers behind the task `after`, nearest rank first.
void add_sends(Schedule* out, const FamilyOptions& options, const Buffer& inbox, const std::string& from,
               const std::string& after) {
  const std::vector<int64_t>& got = out->tables.at("got");
  int64_t most = 0;
  for (size_t d = 0; d + 1 < got.size(); ++d) most = std::max(most, got[d + 1] - got[d]);
  out->consts["got_max"] = most;
  out->buffers.push_back(inbox);
  out->signals = {{"arrived", "q"}, {"credit", 1}};
  const Range columns = all(inbox.shape[1].text());
  Task push = copy("push", lane_of_peer(options), "s*G+p", {chunks(), peers()}, box(from, {sent_rows(kTo), columns}),
                   box_at(inbox.name, kTo, {placed_rows("r", kTo), columns}));
  if (!after.empty()) push.deps = {after};
  push.waits = {credit_from("credit", kTo)};
  push.sets = {set_at("arrived", "s", kTo)};
  out->tasks.push_back(std::move(push));
}

/// gemm_a2a: products to "S".
void add_sends_of_products(Schedule* out, const OpSpec& op, const FamilyOptions& options, const std::string& after) {
  add_sends(out, options, {"S", Space::symmetric, op.out_dtype, {"got_max", "N"}, 2}, "P", after);
}

/// What has come goes into the result, which no peer may write.
void add_takes(Schedule* out) {
  const std::vector<Range> rows = {placed_rows(kFrom, "r"), all("N")};
  Task take = copy("take", "ce_queues", "s*G+p", {chunks(), peers()}, box("S", rows), box("Y", rows));
  take.waits = {wait_for("arrived", "s", kFrom)};
  take.sets = {set_at("credit", 0, kFrom)};
  take.sets[0].each = Loop{"z", 0, "max(0,s-q+2)"};
  out->tasks.push_back(std::move(take));
}

/// My own block to its place, where it is not multiplied out of, or into, its place.
void add_take_own_rows(Schedule* out, const std::string& from, const std::string& to, const std::string& columns,
                       std::vector<std::string> deps) {
  Task own = copy("take_own", "ce_queues", "s*G", {chunks()}, box(from, {sent_rows("r"), all(columns)}),
                  box(to, {placed_rows("r", "r"), all(columns)}));
  own.deps = std::move(deps);
  out->tasks.push_back(std::move(own));
}

/// The exchange by the team's engine.
Task by_library(const std::string& from, const std::string& to, const std::string& columns, Expr order) {
  Task out;
  out.id = "all_to_all";
  out.kind = Kind::collective;
  out.order = std::move(order);
  out.params = {{"collective", out.id}, {"splits", std::string("splits")}};
  out.reads = {box(from, {all(kMyRows), all(columns)})};
  out.writes = {box(to, {all(kGot), all(columns)})};
  return out;
}

/// The family where rows are exchanged, and where columns are.
template <Make kRows, auto kMakeColumns, Columns kHow>
void make_either(Schedule* out, const OpSpec& op, const FamilyOptions& options) {
  op.exchange == Exchange::cols ? kMakeColumns(out, op, options, kHow) : kRows(out, op, options);
}

// ---- gemm_a2a ----

template <Make kRows, Columns kHow>
constexpr Make behind = make_either<kRows, make_columns_behind, kHow>;

void make_library(Schedule* out, const OpSpec& op, const FamilyOptions&) {
  add_products_buffer(out, op, "P");
  add_whole(out, op, "P");
  out->tasks.push_back(by_library("P", "Y", "N", 1));
}

void make_serial(Schedule* out, const OpSpec& op, const FamilyOptions& options) {
  add_products_buffer(out, op, "P");
  add_whole(out, op, "P");
  add_sends_of_products(out, op, options, "gemm");
  add_take_own_rows(out, "P", "Y", "N", {"gemm"});
  add_takes(out);
}

/// Step s multiplies chunk s of all blocks.
void make_all_blocks(Schedule* out, const OpSpec& op, const FamilyOptions& options) {
  const Loop ranks = {"p", 0, "G"};
  add_products_buffer(out, op, "P");
  Task step = product(op, "gemm", "s", boxes("A", {sent_rows("p"), all("K")}, ranks),
                      boxes("P", {sent_rows("p"), all("N")}, ranks));
  step.loops = {chunks()};
  out->tasks.push_back(std::move(step));
  add_sends_of_products(out, op, options, "gemm");
  add_take_own_rows(out, "P", "Y", "N", {"gemm"});
  add_takes(out);
}

/// Others' chunks first, in one product a step or one each; my own block last: it hides the last transfer, and needs
/// none itself.
template <bool kAtOnce>
void make_other_blocks(Schedule* out, const OpSpec& op, const FamilyOptions& options) {
  const std::string to = kAtOnce ? std::string(kOther) : kTo;
  add_products_buffer(out, op, "P");
  Region a = box("A", {sent_rows(to), all("K")}), c = box("P", {sent_rows(to), all("N")});
  if (kAtOnce) a.each = c.each = others();
  Task remote = product(op, "gemm_remote", "s", std::move(a), std::move(c));
  remote.loops = kAtOnce ? std::vector<Loop>{chunks()} : std::vector<Loop>{chunks(), peers()};
  out->tasks.push_back(std::move(remote));
  out->tasks.push_back(
      product(op, "gemm_own", "q", box("A", {own_rows(), all("K")}), box("Y", {own_rows_placed(), all("N")})));
  add_sends_of_products(out, op, options, "gemm_remote");
  add_takes(out);
}

void make_compute(Schedule* out, const OpSpec& op, const FamilyOptions&) {
  add_products_buffer(out, op, "P");
  add_whole(out, op, "P");
}

/// The transfers alone, or beside a product that nothing waits for.
template <bool kWithProduct>
void make_exchange_comm(Schedule* out, const OpSpec& op, const FamilyOptions& options) {
  add_products_buffer(out, op, "P");
  if (kWithProduct) {
    add_products_buffer(out, op, "P0");
    add_whole(out, op, "P0");
  }
  add_sends_of_products(out, op, options, "");
  add_takes(out);
}

void make_alone(Schedule* out, const OpSpec& op, Purpose purpose) {
  if (purpose != Purpose::comm) add_whole(out, op, "Y");
}

/// The result of a rank is, in the order of the sources, of the block that each of them has for it the product with
/// their own factor or, where rows travel first, with that of the rank.
template <bool kIsBefore>
Meaning exchange_meaning(const Schedule& schedule, int rank, int ranks) {
  if (exchange_of(schedule.params) == Exchange::cols) return columns_meaning(schedule, rank, ranks, kIsBefore);
  const auto table = [&](const char* name, int index) { return schedule.tables.at(name)[static_cast<size_t>(index)]; };
  const int64_t k = std::get<int64_t>(schedule.params.at("K"));
  const int q = static_cast<int>(std::get<int64_t>(schedule.params.at("q")));
  const bool has_bias = std::any_of(schedule.buffers.begin(), schedule.buffers.end(),
                                    [](const Buffer& buffer) { return buffer.name == "bias"; });
  Meaning out;
  out.inputs = {{.buffer = "A", .origin_row = table("off", rank), .is_operand = true}};
  int64_t row = 0;
  for (int source = 0; source < ranks; ++source) {
    const int64_t rows = table("splits", source * ranks + rank);
    Held block{.buffer = "Y",
               .origin_row = table("cut", (source * ranks + rank) * q),
               .row = row,
               .rows = rows,
               .num_biases = has_bias ? 1 : 0};
    if (k > 0) block.terms.push_back({kIsBefore ? rank : source, 0, k});
    if (rows > 0) out.outputs.push_back(std::move(block));
    row += rows;
  }
  return out;
}

constexpr Arg kGemmA2aArgs[] = {
    {.name = "A", .call = "a", .rows = kMyRows, .columns = "K", .why = "as splits say", .doc = "rows of this rank"},
    {.name = "B", .call = "b", .rows = "K", .columns = "N", .has_layout = true, .doc = "right factor of this rank"},
    {.name = "Y",
     .call = "out",
     .role = Role::output,
     .rows = kGot,
     .columns = "N",
     .cols = {"M", "N/G"},
     .why = "to take this rank's block of each rank's product",
     .doc = "in the order of the ranks, what each of them multiplied for this one"},
    {.name = "bias",
     .call = "bias",
     .role = Role::bias,
     .rows = "N",
     .doc = "added to each row of this rank's product"}};

using enum ClosedForm;
constexpr FamilyDef kGemmA2aFamilies[] = {
    whole("library", library, degree_of_one, behind<make_library, Columns::library>),
    whole("serial", serial, degree_of_one, behind<make_serial, Columns::serial>),
    cut("uniform_fused_1d", all_shards, 3, chunk_degrees, behind<make_all_blocks, Columns::all_ranks>),
    cut("hetero_fused_1d", other_shards, 2, batch_degrees, behind<make_other_blocks<true>, Columns::other_ranks>),
    cut("hetero_unfused_1d", per_shard, 1, chunk_degrees, behind<make_other_blocks<false>, Columns::per_rank>),
    bound("compute", Purpose::compute, behind<make_compute, Columns::compute>),
    bound("comm", Purpose::comm, behind<make_exchange_comm<false>, Columns::comm>),
    bound("limit", Purpose::limit, behind<make_exchange_comm<true>, Columns::limit>),
};

// ---- a2a_gemm ----

template <Make kRows, Columns kHow>
constexpr Make before = make_either<kRows, make_columns_before, kHow>;

/// "X": the rows for me, at their place in the whole of them.
void add_sends_of_rows(Schedule* out, const OpSpec& op, const FamilyOptions& options) {
  add_sends(out, options, {"X", Space::symmetric, op.dtype, {"got_max", "K"}, 2}, "A", "");
  out->params["gathered"] = std::string("X");
}
Task product_of(const OpSpec& op, std::string id, Expr order, const Range& rows) {
  return product(op, std::move(id), std::move(order), box("X", {rows, all("K")}), box("Y", {rows, all("N")}));
}

void make_library_before(Schedule* out, const OpSpec& op, const FamilyOptions&) {
  out->buffers.push_back({"X", Space::local, op.dtype, {kGot, "K"}});
  out->params["gathered"] = std::string("X");
  out->tasks.push_back(by_library("A", "X", "K", 0));
  out->tasks.push_back(product_of(op, "gemm", 1, all(kGot)));
}

/// The own block goes to its place among the others', and all are one product; or one a step.
template <bool kIsSerial>
void make_all_blocks_before(Schedule* out, const OpSpec& op, const FamilyOptions& options) {
  add_sends_of_rows(out, op, options);
  add_take_own_rows(out, "A", "X", "K", {});
  const Loop ranks = {"p", 0, "G"};
  const std::vector<Range> rows = {placed_rows("p", "r"), all("K")}, results = {rows[0], all("N")};
  Task step = kIsSerial ? product_of(op, "gemm", 0, all(kGot))
                        : product(op, "gemm", "s", boxes("X", rows, ranks), boxes("Y", results, ranks));
  if (!kIsSerial) step.loops = {chunks()};
  step.deps = {"take_own"};
  step.waits = {wait_each("arrived", kIsSerial ? "0" : "s", "(r+p)%G", peers())};
  step.sets = {set_at("credit", 0, "(r+p)%G")};
  step.sets[0].each = kIsSerial ? peers() : peers_at_last("s");
  out->tasks.push_back(std::move(step));
}

/// My own block at once, out of A; then chunks of the others', in one product a step or one each as they come.
template <bool kAtOnce>
void make_other_blocks_before(Schedule* out, const OpSpec& op, const FamilyOptions& options) {
  add_sends_of_rows(out, op, options);
  out->tasks.push_back(
      product(op, "gemm_own", 0, box("A", {own_rows(), all("K")}), box("Y", {own_rows_placed(), all("N")})));
  const std::string from = kAtOnce ? std::string(kOther) : kFrom;
  const Range rows = placed_rows(from, "r");
  Task remote = product_of(op, "gemm_remote", "1+s", rows);
  if (kAtOnce) remote.reads[0].each = remote.writes[0].each = others();
  remote.loops = kAtOnce ? std::vector<Loop>{chunks()} : std::vector<Loop>{chunks(), peers()};
  remote.waits = {kAtOnce ? wait_each("arrived", "s", from, others()) : wait_for("arrived", "s", from)};
  remote.sets = {kAtOnce ? credit_at_last() : credit_to(from, "max(0,s-q+2)")};
  out->tasks.push_back(std::move(remote));
}

void make_compute_before(Schedule* out, const OpSpec& op, const FamilyOptions&) {
  out->buffers.push_back({"X", Space::local, op.dtype, {kGot, "K"}});
  out->tasks.push_back(product_of(op, "gemm", 0, all(kGot)));
}

template <bool kWithProduct>
void make_comm_before(Schedule* out, const OpSpec& op, const FamilyOptions& options) {
  add_sends_of_rows(out, op, options);
  if (kWithProduct) {
    out->buffers.push_back({"X0", Space::local, op.dtype, {kGot, "K"}});
    out->tasks.push_back(product(op, "gemm", 0, box("X0", {all(kGot), all("K")}), box("Y", {all(kGot), all("N")})));
  }
  out->tasks.push_back(finish(op, "finish", "1+s", "X", "arrived", "credit"));
}

constexpr Arg kA2aGemmArgs[] = {
    {.name = "A",
     .call = "a_shard",
     .rows = kMyRows,
     .columns = "K",
     .cols = {"M", "K/G"},
     .why = "as splits say",
     .doc = "rows of this rank"},
    {.name = "B", .call = "b", .rows = "K", .columns = "N", .has_layout = true, .doc = "right factor, of this rank"},
    {.name = "Y",
     .call = "c",
     .role = Role::output,
     .rows = kGot,
     .columns = "N",
     .cols = {kMyRows, "N"},
     .why = "to take N of b for the rows that come",
     .doc = "product of the rows that come, in the order of the ranks"},
    {.name = "bias", .call = "bias", .role = Role::bias, .rows = "N", .doc = "added to each row"},
    {.name = {},
     .call = "a",
     .role = Role::gathered,
     .rows = kGot,
     .columns = "K",
     .cols = {kMyRows, "K"},
     .why = "to take the rows that come",
     .doc = "this rank's block of each rank's a_shard, in the order of the ranks"}};

constexpr FamilyDef kA2aGemmFamilies[] = {
    whole("library", library, degree_of_one, before<make_library_before, Columns::library>),
    whole("serial", serial, degree_of_one, before<make_all_blocks_before<true>, Columns::serial>),
    cut("uniform_fused_1d", all_shards, 0, chunk_degrees, before<make_all_blocks_before<false>, Columns::all_ranks>),
    cut("hetero_fused_1d", other_shards, 2, batch_degrees,
        before<make_other_blocks_before<true>, Columns::other_ranks>),
    cut("hetero_unfused_1d", per_shard, 1, chunk_degrees, before<make_other_blocks_before<false>, Columns::per_rank>),
    bound("compute", Purpose::compute, before<make_compute_before, Columns::compute>),
    bound("comm", Purpose::comm, before<make_comm_before<false>, Columns::comm>),
    bound("limit", Purpose::limit, before<make_comm_before<true>, Columns::limit>),
};

}  // namespace

constinit const OperatorDef kGemmA2a = {
    .name = "gemm_a2a",
    .summary = "Y = blocks for this rank of all ranks' A B + bias: GEMM, then All-to-All",
    .suffix = "_a2a",
    .args = kGemmA2aArgs,
    .families = kGemmA2aFamilies,
    .flow = {.exchanges = true},
    .local_param = "K",
    .make_alone = make_alone,
    .meaning = exchange_meaning<false>};

constinit const OperatorDef kA2aGemm = {
    .name = "a2a_gemm",
    .summary = "Y = blocks for this rank of all ranks' A, times B + bias: All-to-All, then GEMM",
    .args = kA2aGemmArgs,
    .families = kA2aGemmFamilies,
    .flow = {.gathers = true, .exchanges = true},
    .local_param = "N",
    .make_alone = make_alone,
    .meaning = exchange_meaning<true>};

}  // namespace overlace::spec
