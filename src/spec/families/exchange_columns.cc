// gemm_a2a and a2a_gemm where columns are exchanged: rank r has all columns of its rows, and each rank all rows of the
// columns that are its own. Every block of columns is dealt over the ranks by itself.
#include <algorithm>
#include <functional>
#include <string>
#include <utility>

#include "src/spec/families/families.h"

namespace overlace::spec {
namespace {

const std::string kWidth = "((block[j+1]-block[j])/G)";  // of block j at each rank

Loop blocks() { return {"j", 0, "blocks"}; }
Loop first_block() { return {"j", 0, 1}; }
Loop other_blocks() { return {"j", 1, "blocks"}; }
/// Ranks below this one, and those above it.
Loop sides() { return {"h", 0, 2}; }

/// Columns of block j: those of a rank among all, all ranks' on one side of this one, and where a rank has its own.
Range columns_of(const std::string& rank) { return {"block[j]+" + rank + "*" + kWidth, kWidth}; }
Range columns_beside() { return {"block[j]+h*(r+1)*" + kWidth, "(h*(G-1-r)+(1-h)*r)*" + kWidth}; }
Range columns_at_owner() { return {"block[j]/G", kWidth}; }

Range chunk_here() { return chunk_rows_in_shard("r"); }

Region each_block(std::string buffer, Range rows, Range columns, const std::string& at = "r") {
  return {std::move(buffer), at, {std::move(rows), std::move(columns)}, blocks()};
}
Region all_columns(const std::string& buffer, const char* columns, Range rows = all(kMyRows)) {
  return box(buffer, {std::move(rows), all(columns)});
}

/// Copies of chunk s to its place at the rank at distance p, nearest first.
Task push(const FamilyOptions& options, Region from, Region to) {
  Task out = copy("push", lane_of_peer(options), "s*G+p", {chunks(), peers()}, std::move(from), std::move(to));
  out.waits = {credit_from("credit", kTo)};
  out.sets = {set_at("arrived", "s", kTo)};
  return out;
}
void add_signals(Schedule* out) { out->signals = {{"arrived", "q"}, {"credit", 1}}; }

/// Moves blocks between a buffer where they lie rank by rank and one of whole rows, in the lane of the products.
Task rearrange(const char* id, Expr order, Region from, Region to) {
  Task out = copy(id, 0, std::move(order), {{"d", 0, "G"}}, std::move(from), std::move(to));
  out.engine = Engine::sm;
  return out;
}
const char* const kRowsOfAll = "G*(off[r+1]-off[r])";
Range rows_for_rank() { return {"d*(off[r+1]-off[r])", kMyRows}; }

/// The exchange by the team's engine, of rows: `is_behind`, each rank's go to all, else each rank gets its own.
Task columns_by_library(Schedule* out, bool is_behind, Expr order, Region from, Region to) {
  const std::vector<int64_t> off = out->tables.at("off");
  const size_t ranks = off.size() - 1;
  std::vector<int64_t>& splits = out->tables["splits"];
  for (size_t s = 0; s < ranks; ++s)
    for (size_t d = 0; d < ranks; ++d) {
      const size_t owner = is_behind ? s : d;
      splits.push_back(off[owner + 1] - off[owner]);
    }
  Task task;
  task.id = "all_to_all";
  task.kind = Kind::collective;
  task.order = std::move(order);
  task.params = {{"collective", task.id}, {"splits", std::string("splits")}};
  task.reads = {std::move(from)};
  task.writes = {std::move(to)};
  return task;
}

// ---- gemm_a2a ----

/// Some columns of the product of some of my rows.
Task column_product(const OpSpec& op, std::string id, Expr order, Range rows, const Range& columns, Region to) {
  Task out = gemm(op, std::move(id), std::move(order), box("A", {std::move(rows), all("K")}), b_columns(op, columns),
                  std::move(to), /*with_bias=*/false);
  if (op.bias) out.reads.push_back(box("bias", {columns}));
  return out;
}
void add_whole_product(Schedule* out, const OpSpec& op, const char* to) {
  out->buffers.push_back({to, Space::local, op.out_dtype, {kMyRows, "N"}});
  out->tasks.push_back(column_product(op, "gemm", 0, all(kMyRows), all("N"), all_columns(to, "N")));
}

/// Products to "S", where they lie as in the result, behind the task `after`; what has come goes from there into it.
void add_column_sends(Schedule* out, const OpSpec& op, const FamilyOptions& options, const char* after) {
  out->buffers.push_back({"S", Space::symmetric, op.out_dtype, {"M", "N/G"}, 2});
  add_signals(out);
  Task send = push(options, each_block("P", chunk_here(), columns_of(kTo)),
                   each_block("S", chunk_rows("r"), columns_at_owner(), kTo));
  if (after != nullptr) send.deps = {after};
  out->tasks.push_back(std::move(send));
  const std::vector<Range> rows = {chunk_rows(kFrom), all("N/G")};
  Task take = copy("take", "ce_queues", "s*G+p", {chunks(), peers()}, box("S", rows), box("Y", rows));
  take.waits = {wait_for("arrived", "s", kFrom)};
  take.sets = {credit_to(kFrom, "max(0,s-q+2)")};
  out->tasks.push_back(std::move(take));
}
void add_take_own_columns(Schedule* out) {
  Task own = copy("take_own", "ce_queues", "s*G", {chunks()}, each_block("P", chunk_here(), columns_of("r")),
                  each_block("Y", chunk_rows("r"), columns_at_owner()));
  own.deps = {"gemm"};
  out->tasks.push_back(std::move(own));
}

void make_columns_library(Schedule* out, const OpSpec& op) {
  add_whole_product(out, op, "P");
  out->buffers.push_back({"Z", Space::local, op.out_dtype, {kRowsOfAll, "N/G"}});
  out->tasks.push_back(rearrange("pack", 1, each_block("P", all(kMyRows), columns_of("d")),
                                 each_block("Z", rows_for_rank(), columns_at_owner())));
  out->tasks.push_back(
      columns_by_library(out, true, 2, all_columns("Z", "N/G", all(kRowsOfAll)), all_columns("Y", "N/G", all("M"))));
}

/// Step s multiplies chunk s of my rows by all columns.
void make_all_ranks(Schedule* out, const OpSpec& op, const FamilyOptions& options) {
  add_whole_product(out, op, "P");
  Task& step = out->tasks.back();
  step = column_product(op, "gemm", "s", chunk_here(), all("N"), all_columns("P", "N", chunk_here()));
  step.loops = {chunks()};
  add_column_sends(out, op, options, "gemm");
  add_take_own_columns(out);
}

/// Others' columns first, those of the ranks on one side together or of each rank by itself; my own last, into their
/// place: they hide the last transfer, and need none.
void make_other_ranks(Schedule* out, const OpSpec& op, const FamilyOptions& options, bool is_together) {
  out->buffers.push_back({"P", Space::local, op.out_dtype, {kMyRows, "N"}});
  const Range columns = is_together ? columns_beside() : columns_of(kTo);
  Task remote = column_product(op, "gemm_remote", "s", chunk_here(), columns, box("P", {chunk_here(), columns}));
  remote.loops = {chunks(), is_together ? sides() : peers(), blocks()};
  Task own = column_product(op, "gemm_own", "q", all(kMyRows), columns_of("r"),
                            box("Y", {shard_rows("r"), columns_at_owner()}));
  own.loops = {blocks()};
  out->tasks.push_back(std::move(remote));
  out->tasks.push_back(std::move(own));
  add_column_sends(out, op, options, "gemm_remote");
}

// ---- a2a_gemm ----

/// All columns of my rows come together in "X", mine among them.
void add_column_sends_before(Schedule* out, const OpSpec& op, const FamilyOptions& options) {
  out->consts["shard_max"] = longest_shard(*out);
  out->buffers.push_back({"X", Space::symmetric, op.dtype, {"shard_max", "K"}, 2});
  out->params["gathered"] = std::string("X");
  add_signals(out);
  out->tasks.push_back(push(options, each_block("A", chunk_rows(kTo), columns_at_owner()),
                            each_block("X", chunk_rows_in_shard(kTo), columns_of("r"), kTo)));
}
void add_own_before(Schedule* out) {
  out->tasks.push_back(copy("take_own", "ce_queues", 0, {}, each_block("A", shard_rows("r"), columns_at_owner()),
                            each_block("X", all(kMyRows), columns_of("r"))));
}
Task column_product_of(const OpSpec& op, const char* x, Expr order, const Range& rows) {
  return gemm(op, "gemm", std::move(order), box(x, {rows, all("K")}), b_operand(op), box("Y", {rows, all("N")}), true);
}

void make_columns_library_before(Schedule* out, const OpSpec& op) {
  out->buffers.push_back({"Z", Space::local, op.dtype, {kRowsOfAll, "K/G"}});
  out->buffers.push_back({"X", Space::local, op.dtype, {kMyRows, "K"}});
  out->params["gathered"] = std::string("X");
  out->tasks.push_back(
      columns_by_library(out, false, 0, all_columns("A", "K/G", all("M")), all_columns("Z", "K/G", all(kRowsOfAll))));
  out->tasks.push_back(rearrange("unpack", 1, each_block("Z", rows_for_rank(), columns_at_owner()),
                                 each_block("X", all(kMyRows), columns_of("d"))));
  out->tasks.push_back(column_product_of(op, "X", 2, all(kMyRows)));
}

/// One product of all my rows, or one of chunk s a step, once all columns of them are there.
void make_all_ranks_before(Schedule* out, const OpSpec& op, const FamilyOptions& options, bool is_serial) {
  add_column_sends_before(out, op, options);
  add_own_before(out);
  Task step = is_serial ? column_product_of(op, "X", 0, all(kMyRows)) : column_product_of(op, "X", "s", chunk_here());
  if (!is_serial) step.loops = {chunks()};
  step.deps = {"take_own"};
  step.waits = {wait_each("arrived", is_serial ? "0" : "s", "(r+p)%G", peers())};
  step.sets = {set_at("credit", 0, "(r+p)%G")};
  step.sets[0].each = is_serial ? peers() : peers_at_last("s");
  out->tasks.push_back(std::move(step));
}

/// My own columns at once; then those of the others as they come, of the ranks on one side together or of each rank by
/// itself. Sums stay wide until the last.
void make_other_ranks_before(Schedule* out, const OpSpec& op, const FamilyOptions& options, bool is_together) {
  out->buffers.push_back({"acc", Space::local, accumulator(op), {kMyRows, "N"}});
  add_column_sends_before(out, op, options);
  add_own_before(out);
  const auto part = [&](const char* id, Expr order, std::vector<Loop> loops, const Range& rows, const Range& columns) {
    Task task = gemm(op, id, std::move(order), box("X", {rows, columns}), b_depth(op, columns),
                     box("acc", {rows, all("N")}), false);
    task.loops = std::move(loops);
    task.params["accumulate"] = true;
    task.combine = Combine::add;
    return task;
  };
  Task first = part("gemm_own", 0, {first_block()}, all(kMyRows), columns_of("r"));
  first.params.erase("accumulate");
  first.combine = Combine::none;
  first.deps = {"take_own"};
  Task own = part("gemm_own_add", 1, {other_blocks()}, all(kMyRows), columns_of("r"));
  own.deps = {"take_own"};
  Task remote = part("gemm_remote", "2+s", {chunks(), is_together ? sides() : peers(), blocks()}, chunk_here(),
                     is_together ? columns_beside() : columns_of(kFrom));
  const std::string is_last = "max(0,s-q+2)*max(0,j-blocks+2)";
  if (is_together) {
    remote.waits = {wait_each("arrived", "s", "(r+p)%G", peers())};
    remote.sets = {set_at("credit", 0, "(r+p)%G")};
    remote.sets[0].each = Loop{"p", 1, "1+(G-1)*h*" + is_last};
  } else {
    remote.waits = {wait_for("arrived", "s", kFrom)};
    remote.sets = {credit_to(kFrom, is_last)};
  }
  Task round = reduce("convert", 0, "2+q", {}, {box("acc", {all(kMyRows), all("N")})}, all_columns("Y", "N"));
  if (op.bias) add_bias(&round, all("N"));
  for (Task* task : {&first, &own, &remote, &round}) out->tasks.push_back(std::move(*task));
}

bool has_bias_buffer(const Schedule& schedule) {
  return std::any_of(schedule.buffers.begin(), schedule.buffers.end(),
                     [](const Buffer& buffer) { return buffer.name == "bias"; });
}

/// Columns of each block that this rank has, where they lie among its own, and among all.
void for_each_block(const Schedule& schedule, int rank, int ranks,
                    const std::function<void(int64_t at_owner, int64_t among_all, int64_t width)>& visit) {
  const std::vector<int64_t>& block = schedule.tables.at("block");
  for (size_t j = 0; j + 1 < block.size(); ++j) {
    const int64_t width = (block[j + 1] - block[j]) / ranks;
    visit(block[j] / ranks, block[j] + rank * width, width);
  }
}

}  // namespace

void make_columns_behind(Schedule* out, const OpSpec& op, const FamilyOptions& options, Columns how) {
  switch (how) {
    case Columns::library:
      return make_columns_library(out, op);
    case Columns::serial:
    case Columns::all_ranks:
      return make_all_ranks(out, op, options);
    case Columns::other_ranks:
      return make_other_ranks(out, op, options, /*is_together=*/true);
    case Columns::per_rank:
      return make_other_ranks(out, op, options, /*is_together=*/false);
    case Columns::compute:
      return add_whole_product(out, op, "P");
    case Columns::comm:
      out->buffers.push_back({"P", Space::local, op.out_dtype, {kMyRows, "N"}});
      return add_column_sends(out, op, options, nullptr);
    case Columns::limit:
      add_whole_product(out, op, "P0");
      out->buffers.push_back({"P", Space::local, op.out_dtype, {kMyRows, "N"}});
      return add_column_sends(out, op, options, nullptr);
  }
}

void make_columns_before(Schedule* out, const OpSpec& op, const FamilyOptions& options, Columns how) {
  switch (how) {
    case Columns::library:
      return make_columns_library_before(out, op);
    case Columns::serial:
    case Columns::all_ranks:
      return make_all_ranks_before(out, op, options, how == Columns::serial);
    case Columns::other_ranks:
      return make_other_ranks_before(out, op, options, /*is_together=*/true);
    case Columns::per_rank:
      return make_other_ranks_before(out, op, options, /*is_together=*/false);
    case Columns::compute:
    case Columns::limit:
      out->buffers.push_back({"X0", Space::local, op.dtype, {kMyRows, "K"}});
      if (how == Columns::limit) add_column_sends_before(out, op, options);
      out->tasks.push_back(column_product_of(op, "X0", 0, all(kMyRows)));
      if (how == Columns::limit) out->tasks.push_back(finish(op, "finish", "1+s", "X", "arrived", "credit"));
      return;
    case Columns::comm:
      add_column_sends_before(out, op, options);
      out->tasks.push_back(finish(op, "finish", "1+s", "X", "arrived", "credit"));
      return;
  }
}

Meaning columns_meaning(const Schedule& schedule, int rank, int ranks, bool is_before) {
  const std::vector<int64_t>& off = schedule.tables.at("off");
  const auto begin = [&](int owner) { return off[static_cast<size_t>(owner)]; };
  const int64_t k = std::get<int64_t>(schedule.params.at("K"));
  const auto result = [&](int source) {
    Held out{.buffer = "Y", .origin_row = begin(source), .num_biases = has_bias_buffer(schedule) ? 1 : 0};
    out.rows = begin(source + 1) - begin(source);
    if (k > 0) out.terms.push_back({source, 0, k});
    return out;
  };
  Meaning out;
  if (is_before) {
    for_each_block(schedule, rank, ranks, [&](int64_t at_owner, int64_t among_all, int64_t width) {
      Held input{.buffer = "A", .origin_column = among_all, .is_operand = true};
      input.column = at_owner, input.columns = width;
      out.inputs.push_back(std::move(input));
    });
    out.outputs.push_back(result(rank));
    return out;
  }
  out.inputs = {{.buffer = "A", .origin_row = begin(rank), .is_operand = true}};
  for (int source = 0; source < ranks; ++source)
    for_each_block(schedule, rank, ranks, [&](int64_t at_owner, int64_t among_all, int64_t width) {
      Held block = result(source);
      block.row = begin(source);
      block.origin_column = among_all;
      block.column = at_owner, block.columns = width;
      if (block.rows > 0 && width > 0) out.outputs.push_back(std::move(block));
    });
  return out;
}

}  // namespace overlace::spec
