// embedding_a2a: each rank pools the bags of its features for the whole batch, and each sample's owner gets all
// features of it. Buffer "P" has a row for each sample and the columns of the rank's features side by side; "S" and the
// result have the columns as the placement says.
#include <algorithm>
#include <string>
#include <utility>

#include "src/spec/families/families.h"
#include "src/spec/families/placement.h"
#include "src/spec/families/pool.h"

namespace overlace::spec {
namespace {

constexpr const char* kMyColumns = "packed[r+1]-packed[r]";

const std::string& text_of_field(const Params& fields, std::string_view name) {
  return std::get<std::string>(fields.find(name)->second);
}

/// make_schedule() has read it once: it is whole.
Placement placement_of(const OpSpec& op) {
  return read_placement(text_of_field(op.fields, "placement"), op.ranks, op.n).value();
}

/// Tables of the features: "feature", offsets of the ranks' features; "local", "column" and "width", of each feature in
/// "P" and in the result; "packed", offsets of the ranks' columns. What kernels read instead of the placement: "slice",
/// where in the weights of its rank a feature's slice begins, "table_rows" and "padding", of its table.
void add_features(Schedule* out, const OpSpec& op) {
  const Placement placement = placement_of(op);
  std::vector<int64_t> first = {0}, packed = {0}, local, column, width, slice, rows, padding;
  for (int rank = 0; rank < op.ranks; ++rank) {
    const auto [begin, end] = placement.features_of(rank);
    int64_t columns = 0, elements = 0;
    const std::vector<int64_t> slices = placement.slices(rank, &elements);
    slice.insert(slice.end(), slices.begin(), slices.end());
    for (size_t f = begin; f < end; ++f) {
      const EmbeddingTable& table = placement.tables[static_cast<size_t>(placement.features[f].table)];
      rows.push_back(table.rows);
      padding.push_back(table.padding);
      local.push_back(columns);
      column.push_back(placement.features[f].column);
      width.push_back(placement.features[f].width);
      columns += width.back();
    }
    first.push_back(static_cast<int64_t>(end));
    packed.push_back(packed.back() + columns);
  }
  out->tables.insert({{"feature", std::move(first)},
                      {"packed", std::move(packed)},
                      {"local", std::move(local)},
                      {"column", std::move(column)},
                      {"width", std::move(width)},
                      {"slice", std::move(slice)},
                      {"table_rows", std::move(rows)},
                      {"padding", std::move(padding)}});
}

Range local_columns() { return {"local[f]", "width[f]"}; }
Range result_columns() { return {"column[f]", "width[f]"}; }
/// A box for each feature of `owner`.
Region each_feature(std::string buffer, Range rows, Range columns, const std::string& owner,
                    const std::string& at = "r") {
  return {std::move(buffer),
          at,
          {std::move(rows), std::move(columns)},
          Loop{"f", "feature[" + owner + "]", "feature[" + owner + "+1]"}};
}

void add_pooled(Schedule* out, const OpSpec& op, const char* name, const char* columns = kMyColumns) {
  out->buffers.push_back({name, Space::local, op.out_dtype, {"M", columns}});
}
void add_pool(Schedule* out, const OpSpec& op, const char* id, Expr order, std::vector<Loop> loops, Range rows,
              const char* to = "P", const char* columns = kMyColumns) {
  Task pool;
  pool.id = id;
  pool.kind = Kind::pool;
  pool.order = std::move(order);
  pool.loops = std::move(loops);
  pool.params = {{"entries", placement_of(op).entries}};
  pool.writes = {box(to, {std::move(rows), all(columns)})};
  out->tasks.push_back(std::move(pool));
}

/// Rows of "P" to "S" at the samples' owners behind the task `after`, nearest rank first, and from there into the
/// result, which no peer may write.
void add_sends_of_sums(Schedule* out, const OpSpec& op, const FamilyOptions& options, const char* after) {
  out->consts["shard_max"] = longest_shard(*out);
  out->buffers.push_back({"S", Space::symmetric, op.out_dtype, {"shard_max", "N"}, 2});
  out->signals = {{"arrived", "q"}, {"credit", 1}};
  Task push = copy("push", lane_of_peer(options), "s*G+p", {chunks(), peers()},
                   each_feature("P", chunk_rows(kTo), local_columns(), "r"),
                   each_feature("S", chunk_rows_in_shard(kTo), result_columns(), "r", kTo));
  if (after != nullptr) push.deps = {after};
  push.waits = {credit_from("credit", kTo)};
  push.sets = {set_at("arrived", "s", kTo)};
  out->tasks.push_back(std::move(push));
  Task take = copy("take", "ce_queues", "s*G+p", {chunks(), peers()},
                   each_feature("S", chunk_rows_in_shard("r"), result_columns(), kFrom),
                   each_feature("Y", chunk_rows_in_shard("r"), result_columns(), kFrom));
  take.waits = {wait_for("arrived", "s", kFrom)};
  take.sets = {set_at("credit", 0, kFrom)};
  take.sets[0].each = Loop{"z", 0, "max(0,s-q+2)"};
  out->tasks.push_back(std::move(take));
}

void add_take_own(Schedule* out, const char* after) {
  Task own = copy("take_own", "ce_queues", "q*G", {}, each_feature("P", shard_rows("r"), local_columns(), "r"),
                  each_feature("Y", all(kMyRows), result_columns(), "r"));
  own.deps = {after};
  out->tasks.push_back(std::move(own));
}

/// Blocks of one width, that of the rank with most columns: what the library's exchange takes.
void make_embedding_library(Schedule* out, const OpSpec& op, const FamilyOptions&) {
  add_features(out, op);
  const std::vector<int64_t>&packed = out->tables.at("packed"), &off = out->tables.at("off");
  int64_t widest = 0;
  std::vector<int64_t> splits;
  for (size_t s = 0; s + 1 < packed.size(); ++s) {
    widest = std::max(widest, packed[s + 1] - packed[s]);
    for (size_t d = 0; d + 1 < off.size(); ++d) splits.push_back(off[d + 1] - off[d]);
  }
  out->consts["widest"] = widest;
  out->tables["splits"] = std::move(splits);
  add_pooled(out, op, "P", "widest");
  add_pool(out, op, "pool", 0, {}, all("M"), "P", "widest");
  out->buffers.push_back({"Z", Space::local, op.out_dtype, {"G*(off[r+1]-off[r])", "widest"}});
  Task exchange;
  exchange.id = "all_to_all";
  exchange.kind = Kind::collective;
  exchange.order = 1;
  exchange.params = {{"collective", exchange.id}, {"splits", std::string("splits")}};
  exchange.reads = {box("P", {all("M"), all("widest")})};
  exchange.writes = {box("Z", {all("G*(off[r+1]-off[r])"), all("widest")})};
  out->tasks.push_back(std::move(exchange));
  Task unpack =
      copy("unpack", 0, 2, {{"d", 0, "G"}}, each_feature("Z", {"d*(off[r+1]-off[r])", kMyRows}, local_columns(), "d"),
           each_feature("Y", all(kMyRows), result_columns(), "d"));
  unpack.engine = Engine::sm;
  out->tasks.push_back(std::move(unpack));
}

void make_embedding_serial(Schedule* out, const OpSpec& op, const FamilyOptions& options) {
  add_features(out, op);
  add_pooled(out, op, "P");
  add_pool(out, op, "pool", 0, {}, all("M"));
  add_sends_of_sums(out, op, options, "pool");
  add_take_own(out, "pool");
}

/// Others' samples first, chunk by chunk and nearest rank first; my own last, beside the last transfers.
void make_chunked(Schedule* out, const OpSpec& op, const FamilyOptions& options) {
  add_features(out, op);
  add_pooled(out, op, "P");
  add_pool(out, op, "pool_remote", "s", {chunks(), peers()}, chunk_rows(kTo));
  add_pool(out, op, "pool_own", "q", {}, shard_rows("r"));
  add_sends_of_sums(out, op, options, "pool_remote");
  add_take_own(out, "pool_own");
}

void make_embedding_compute(Schedule* out, const OpSpec& op, const FamilyOptions&) {
  add_features(out, op);
  add_pooled(out, op, "P");
  add_pool(out, op, "pool", 0, {}, all("M"));
}
void make_comm(Schedule* out, const OpSpec& op, const FamilyOptions& options) {
  add_features(out, op);
  add_pooled(out, op, "P");
  add_sends_of_sums(out, op, options, nullptr);
}
void make_limit(Schedule* out, const OpSpec& op, const FamilyOptions& options) {
  make_comm(out, op, options);
  add_pooled(out, op, "P0");
  add_pool(out, op, "pool", 0, {}, all("M"), "P0");
}

void make_embedding_alone(Schedule* out, const OpSpec& op, Purpose purpose) {
  add_features(out, op);
  if (purpose == Purpose::comm) return;
  add_pooled(out, op, "P");
  add_pool(out, op, "pool", 0, {}, all("M"));
  Task place = copy("place", 0, 1, {}, each_feature("P", all("M"), local_columns(), "r"),
                    each_feature("Y", all("M"), result_columns(), "r"));
  place.engine = Engine::sm;
  out->tasks.push_back(std::move(place));
}

/// Each element of the result is the whole bag of its sample, of a column of the rank that pools it.
Meaning meaning(const Schedule& schedule, int rank, int ranks) {
  const auto at = [&](std::string_view table, size_t i) { return schedule.tables.find(table)->second[i]; };
  Meaning out;
  for (int source = 0; source < ranks; ++source) {
    const auto begin = static_cast<size_t>(at("feature", static_cast<size_t>(source)));
    const auto end = static_cast<size_t>(at("feature", static_cast<size_t>(source) + 1));
    for (size_t f = begin; f < end; ++f) {
      Held block{.buffer = "Y", .origin_row = at("off", static_cast<size_t>(rank)), .origin_column = at("local", f)};
      block.column = at("column", f), block.columns = at("width", f);
      block.terms = {{source, 0, 1}};
      out.outputs.push_back(std::move(block));
    }
  }
  return out;
}

std::string refuse(const OpSpec& op) {
  if (op.k != 0) return base::format("K is {}, wanted 0: nothing is multiplied", op.k);
  if (const int64_t batch = std::get<int64_t>(op.fields.at("batch")); batch != op.m)
    return base::format("batch is {}, wanted M = {}", batch, op.m);
  if (const std::string& mode = text_of_field(op.fields, "mode"); mode != "sum" && mode != "mean" && mode != "max")
    return base::format("mode is '{}', wanted sum, mean or max", mode);
  if (const std::string& bounds = text_of_field(op.fields, "bounds"); !is_bounds(bounds))
    return base::format("bounds is '{}', wanted error, ignore, clamp, zero_row or none", bounds);
  return std::string(read_placement(text_of_field(op.fields, "placement"), op.ranks, op.n).status().message());
}

void pose(OpSpec* op) {
  const auto batch = op->fields.find("batch");
  if (batch == op->fields.end()) return;  // which the table of fields refuses
  if (const auto* number = std::get_if<int64_t>(&batch->second)) op->m = *number;
}

std::vector<int> row_chunk_degrees(const OpSpec& op, const Machine&) {
  std::vector<int> out;
  for (const int q : {1, 2, 4, 8, 16})
    if (op.m / op.ranks >= q) out.push_back(q);
  return out;
}

constexpr Arg kEmbeddingArgs[] = {
    {.name = {},
     .call = "weights",
     .role = Role::data,
     .rows = "weights",
     .doc = "this rank's slices of tables, one after the other, each (rows, width)"},
    {.name = {},
     .call = "indices",
     .role = Role::data,
     .rows = "entries",
     .doc = "rows of tables, bag by bag; i32 or i64"},
    {.name = {},
     .call = "offsets",
     .role = Role::data,
     .rows = "bags+1",
     .doc = "where bag f M + b of this rank's feature f and sample b begins in indices; i32 or i64"},
    {.name = {},
     .call = "per_sample_weights",
     .role = Role::data,
     .rows = "entries",
     .doc = "factors of the entries, with mode sum; or none"},
    {.name = "Y",
     .call = "out",
     .role = Role::output,
     .rows = kMyRows,
     .columns = "N",
     .why = "as the batch is split",
     .doc = "all features of this rank's samples"}};
constexpr FieldDef kFields[] = {{"batch", FieldType::integer, "samples of all ranks"},
                                {"bounds", FieldType::text, "error, ignore, clamp, zero_row or none"},
                                {"mode", FieldType::text, "sum, mean or max"},
                                {"placement", FieldType::text, "tables and features as JSON"}};
constexpr FamilyDef kEmbeddingFamilies[] = {
    whole("library", ClosedForm::none, degree_of_one, make_embedding_library),
    whole("serial", ClosedForm::none, degree_of_one, make_embedding_serial),
    cut("hetero_unfused_1d", ClosedForm::none, 1, row_chunk_degrees, make_chunked),
    bound("compute", Purpose::compute, make_embedding_compute),
    bound("comm", Purpose::comm, make_comm),
    bound("limit", Purpose::limit, make_limit),
};

}  // namespace

constinit const OperatorDef kEmbeddingA2a = {
    .name = "embedding_a2a",
    .summary = "out = all features of this rank's samples, pooled where their tables lie: embedding, then All-to-All",
    .suffix = "_embedding",
    .args = kEmbeddingArgs,
    .fields = kFields,
    .families = kEmbeddingFamilies,
    .local_param = {},
    .make_alone = make_embedding_alone,
    .refuse = refuse,
    .meaning = meaning,
    .pose = pose,
    .check_data = check_bags,
    .compute = pool_bags,
    .pools_on_gpus = true};

}  // namespace overlace::spec
