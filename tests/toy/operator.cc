#include "tests/toy/operator.h"

#include <string>
#include <utility>
#include <vector>

#include "overlace/machine.h"

namespace overlace::toy {
namespace {

using namespace overlace::spec;  // NOLINT(google-build-using-namespace): a description in the words of schedules

const std::string kPeer = "((r+p)%G)";
const Loop kChunks = {"s", 0, "q"}, kPeers = {"p", 1, "G"};
const Range kColumns = {0, "N"};

Range rows_of(const std::string& shard) {
  const std::string at = shard + "*q+s";
  return {"cut[" + at + "]", "cut[" + at + "+1]-cut[" + at + "]"};
}
Range rows_in_shard(const std::string& shard) {
  Range out = rows_of(shard);
  out.begin = out.begin.text() + "-off[" + shard + "]";
  return out;
}

Task task(const char* id, Kind kind, Engine engine, Expr queue, Expr order, std::vector<Loop> loops, Region from,
          Region to) {
  Task out;
  out.id = id;
  out.kind = kind;
  out.engine = engine;
  out.queue = std::move(queue);
  out.order = std::move(order);
  out.loops = std::move(loops);
  out.reads = {std::move(from)};
  out.writes = {std::move(to)};
  return out;
}

/// T: my rows, scaled.
void add_scaled(Schedule* out, const OpSpec& op, std::vector<Loop> loops, const Range& rows) {
  out->buffers.push_back({"T", Space::local, op.dtype, {"off[r+1]-off[r]", "N"}});
  Task scale = task("scale", Kind::reduce, Engine::sm, 0, loops.empty() ? Expr(0) : Expr("s"), std::move(loops),
                    {"X", "r", {rows, kColumns}}, {"T", "r", {rows, kColumns}});
  scale.params["activation"] = std::string("scale");
  out->tasks.push_back(std::move(scale));
}

void make_library(Schedule* out, const OpSpec& op, const FamilyOptions&) {
  const Range mine = {0, "off[r+1]-off[r]"};
  add_scaled(out, op, {}, mine);
  Task gather = task("all_gather", Kind::collective, Engine::sm, 0, 1, {}, {"T", "r", {mine, kColumns}},
                     {"Y", "r", {{0, "M"}, kColumns}});
  gather.params["collective"] = std::string("all_gather");
  out->tasks.push_back(std::move(gather));
}

/// Z: what peers sent, at its place in the whole. A credit says that a call has taken its rows out of Z.
void make_pushed(Schedule* out, const OpSpec& op, const FamilyOptions&) {
  add_scaled(out, op, {kChunks}, rows_in_shard("r"));
  out->buffers.push_back({"Z", Space::symmetric, op.dtype, {"M", "N"}, 2});
  out->signals = {{"arrived", "q"}, {"credit", 1}};
  Task push = task("push", Kind::copy, Engine::ce, 0, "s*G+p", {kChunks, kPeers},
                   {"T", "r", {rows_in_shard("r"), kColumns}}, {"Z", kPeer, {rows_of("r"), kColumns}});
  push.deps = {"scale"};
  Wait credit{.signal = "credit", .slot = 0, .from = kPeer, .each = Loop{"z", 0, "max(0,1-s)"}};
  credit.previous = true;
  push.waits = {std::move(credit)};
  push.sets = {{.signal = "arrived", .slot = "s", .at = kPeer}};
  out->tasks.push_back(std::move(push));
  Task own = task("copy_own", Kind::copy, Engine::sm, 1, "s*G", {kChunks}, {"T", "r", {rows_in_shard("r"), kColumns}},
                  {"Y", "r", {rows_of("r"), kColumns}});
  own.deps = {"scale"};
  out->tasks.push_back(std::move(own));
  Task take = task("take", Kind::copy, Engine::sm, 1, "s*G+p", {kChunks, kPeers},
                   {"Z", "r", {rows_of(kPeer), kColumns}}, {"Y", "r", {rows_of(kPeer), kColumns}});
  take.waits = {{.signal = "arrived", .slot = "s", .from = kPeer}};
  take.sets = {{.signal = "credit", .slot = 0, .at = kPeer, .each = Loop{"z", 0, "max(0,s-q+2)"}}};
  out->tasks.push_back(std::move(take));
}

void make_alone(Schedule* out, const OpSpec&, Purpose) {
  Task scale = task("scale", Kind::reduce, Engine::sm, 0, 0, {}, {"X", "r", {{0, "M"}, kColumns}},
                    {"Y", "r", {{0, "M"}, kColumns}});
  scale.params["activation"] = std::string("scale");
  out->tasks.push_back(std::move(scale));
}

/// Each element of Y is the element of X of the same place in the whole, scaled once.
Meaning meaning(const Schedule& schedule, int rank, int) {
  const int64_t first = schedule.tables.at("off")[static_cast<size_t>(rank)];
  return {.inputs = {{.buffer = "X", .origin_row = first, .is_operand = true}},
          .outputs = {{.buffer = "Y", .is_operand = true, .is_activated = true}}};
}

/// alpha times what is read.
void compute(const HostTask& task) {
  if (task.reads[0].empty()) return;
  ++num_computed;
  const auto alpha = static_cast<float>(std::get<double>(task.schedule.params.at("alpha")));
  const TensorView &from = task.reads[0][0], &to = task.writes[0][0];
  for (int64_t i = 0; i < from.dim(0); ++i)
    for (int64_t j = 0; j < from.dim(1); ++j)
      static_cast<float*>(to.data)[i * to.stride(0) + j] =
          alpha * static_cast<const float*>(from.data)[i * from.stride(0) + j];
}

std::string refuse(const OpSpec& op) {
  if (op.k != 0) return "scale_ag sums nothing, wanted K 0";
  if (op.dtype != DType::fp32) return "scale_ag takes fp32";
  return op.dtype == op.out_dtype ? "" : "scale_ag keeps the type, wanted out_dtype equal to dtype";
}

std::vector<int> one(const OpSpec&, const Machine&) { return {1}; }
std::vector<int> chunks(const OpSpec& op, const Machine&) {
  std::vector<int> out;
  for (const int q : {1, 2, 4, 8})
    if (op.m / op.ranks >= q) out.push_back(q);
  return out;
}

constexpr Arg kArgs[] = {
    {.name = "X", .call = "x", .rows = "off[r+1]-off[r]", .columns = "N", .why = "as y's rows are split"},
    {.name = "Y", .call = "y", .role = Role::output, .rows = "M", .columns = "N", .why = "to take all rows of x"}};
constexpr FieldDef kFields[] = {{"alpha", FieldType::real, "the factor"}};
constexpr FamilyDef kFamilies[] = {
    {.name = kLibrary, .degrees = one, .make = make_library},
    {.name = kSerial, .degrees = one, .make = make_pushed},  // one chunk: nothing overlaps
    {.name = "pushed", .has_degree = true, .degrees = chunks, .make = make_pushed},
};

}  // namespace

std::atomic<int64_t> num_computed = 0;

constinit const OperatorDef kOperator = {.name = "scale_ag",
                                         .summary = "y = alpha x, gathered",
                                         .args = kArgs,
                                         .fields = kFields,
                                         .families = kFamilies,
                                         .make_alone = make_alone,
                                         .refuse = refuse,
                                         .meaning = meaning,
                                         .compute = compute};

}  // namespace overlace::toy
