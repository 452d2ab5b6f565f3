#include <algorithm>
#include <utility>

#include "src/base/ceil_div_pod.h"
#include "src/spec/families/families.h"
#include "src/spec/names.h"
#include "src/spec/operators.h"

namespace overlace::spec {
std::vector<int64_t> cut_evenly(int64_t extent, int64_t parts, int64_t align) {
  const int64_t per_part = base::ceil_div(extent, parts), step = base::round_up(per_part, align);
  std::vector<int64_t> out;
  for (int64_t s = 0; s <= parts; ++s) out.push_back(std::min(s * step, extent));
  out.back() = extent;
  return out;
}

void cut_slabs(Schedule* schedule, int64_t extent, const FamilyOptions& options) {
  schedule->tables["slab"] = cut_evenly(extent, options.degree, options.align_columns);
}

Meaning dense_meaning(const Schedule& schedule, int rank, int ranks) {
  const Dataflow flow = flow_of(schedule.op);
  const int64_t first = schedule.tables.at("off")[static_cast<size_t>(rank)];
  const auto depth = schedule.params.find(flow.sums_rows ? "M" : "K");
  const int64_t* const known = depth == schedule.params.end() ? nullptr : std::get_if<int64_t>(&depth->second);
  Meaning out;
  out.inputs = {{.buffer = "A", .origin_row = flow.gathers ? first : 0, .is_operand = true}};
  if (scales_of(schedule.params) == Scales::rows)
    out.inputs.push_back({.buffer = "A_scale", .origin_row = out.inputs[0].origin_row, .is_operand = true});
  Held result{.buffer = flow.gathers ? "C" : "Y"};
  result.origin_row = stays_with_owner(schedule.op) ? first : 0;
  const int begin = flow.gathers ? rank : 0, end = flow.gathers ? rank + 1 : ranks;
  for (int source = begin; source < end && (known == nullptr || *known > 0); ++source)
    result.terms.push_back({source, 0, known == nullptr ? 0 : *known});
  result.num_biases = std::any_of(schedule.buffers.begin(), schedule.buffers.end(),
                                  [](const Buffer& buffer) { return buffer.name == "bias"; })
                          ? 1
                          : 0;
  result.is_activated = activation_of(schedule.params) != Activation::none;
  out.outputs = {std::move(result)};
  return out;
}

void make_dense_alone(Schedule* schedule, const OpSpec& op, Purpose purpose) {
  if (purpose != Purpose::comm) add_plain_gemm(schedule, op, "A", gathers(op.op) ? "C" : "Y");
}

void add_plain_gemm(Schedule* schedule, const OpSpec& op, const std::string& a, const std::string& c, bool with_bias) {
  if (flow_of(op.op).sums_rows) {
    schedule->tasks.push_back(gemm_of_rows(op, "gemm", 0, box(a, {all("M"), all("K")}), b_rows(op, all("M")),
                                           box(c, {all("K"), all("N")}), /*adds=*/false));
    return;
  }
  schedule->tasks.push_back(
      gemm(op, "gemm", 0, box(a, {all("M"), all("K")}), b_operand(op), box(c, {all("M"), all("N")}), with_bias));
}

Loop strips() { return {"j", 0, "strips"}; }
Loop chunks() { return {"s", 0, "q"}; }
Loop peers() { return {"p", 1, "G"}; }
Loop others() { return {"p", 0, "G-1"}; }
Loop only_if_zero(const std::string& var, const std::string& expr) { return {var, 0, "max(0,1-" + expr + ")"}; }
Loop peers_at_last(const std::string& s) { return {"p", 1, "1+(G-1)*max(0," + s + "-q+2)"}; }

Range chunk_rows(const std::string& shard, const std::string& s) {
  const std::string index = shard + "*q+" + s;
  return {"cut[" + index + "]", "cut[" + index + "+1]-cut[" + index + "]"};
}

Range chunk_rows_in_shard(const std::string& shard, const std::string& s) {
  Range out = chunk_rows(shard, s);
  out.begin = out.begin.text() + "-off[" + shard + "]";
  return out;
}

Range grouped_rows(const std::string& shard, const std::string& s) {
  const std::string chunk = "chunk[" + shard + "*q+" + s + "]";
  return {"cut[" + chunk + "]", "cut[" + chunk + "+1]-cut[" + chunk + "]"};
}

Range grouped_rows_in_shard(const std::string& shard, const std::string& s) {
  return {"place[" + shard + "*q+" + s + "]", grouped_rows(shard, s).count};
}

Range shard_rows(const std::string& shard) { return {"off[" + shard + "]", "off[" + shard + "+1]-off[" + shard + "]"}; }
Range all(const std::string& extent) { return {0, extent}; }
Range slab_columns(const std::string& s) { return {"slab[" + s + "]", "slab[" + s + "+1]-slab[" + s + "]"}; }

Region box(std::string buffer, std::vector<Range> dims) { return {std::move(buffer), "r", std::move(dims)}; }
Region box_at(std::string buffer, std::string rank, std::vector<Range> dims) {
  return {std::move(buffer), rank, std::move(dims)};
}
Region boxes(std::string buffer, std::vector<Range> dims, Loop each) {
  return {std::move(buffer), "r", std::move(dims), std::move(each)};
}

Region b_operand(const OpSpec& op) { return b_columns(op, all("N")); }
Region b_columns(const OpSpec& op, const Range& n) {
  return op.b_layout == BLayout::nk ? box("B", {n, all("K")}) : box("B", {all("K"), n});
}
Region b_depth(const OpSpec& op, const Range& k) {
  return op.b_layout == BLayout::nk ? box("B", {all("N"), k}) : box("B", {k, all("N")});
}

Region b_rows(const OpSpec& op, const Range& m) {
  return op.b_layout == BLayout::nk ? box("B", {all("N"), m}) : box("B", {m, all("N")});
}

std::string scale_of(std::string_view buffer) { return std::string(buffer) + "_scale"; }

namespace {

/// Appends the scales of the rows of a and of the columns of b that the task reads; b is stored (N, K).
void add_scales(Task* task, const OpSpec& op) {
  if (op.scales == Scales::none) return;
  task->params["scales"] = std::string(name_of(op.scales));
  if (op.scales == Scales::tensor) {
    for (const char* factor : {"A", "B"}) task->reads.push_back(box(scale_of(factor), {Range{0, 1}}));
    return;
  }
  Region rows = task->reads[0];
  rows.buffer = scale_of(rows.buffer);
  rows.dims[1] = Range{0, 1};
  const Range columns = task->reads[1].dims[0];
  task->reads.push_back(std::move(rows));
  task->reads.push_back(box(scale_of("B"), {Range{0, 1}, columns}));
}

}  // namespace

Task gemm(const OpSpec& op, std::string id, Expr order, Region a, Region b, Region c, bool with_bias) {
  Task out;
  out.id = std::move(id);
  out.kind = Kind::gemm;
  out.order = std::move(order);
  out.params = {{"b_layout", std::string(op.b_layout == BLayout::nk ? "nk" : "kn")}};
  out.reads = {std::move(a), std::move(b)};
  if (with_bias && op.bias) out.reads.push_back(box("bias", {all("N")}));
  add_scales(&out, op);
  out.writes = {std::move(c)};
  return out;
}

Task gemm_of_rows(const OpSpec& op, std::string id, Expr order, Region a, Region b, Region c, bool adds) {
  Task out = gemm(op, std::move(id), std::move(order), std::move(a), std::move(b), std::move(c), false);
  out.params["a_layout"] = std::string("km");
  if (!adds) return out;
  out.params["accumulate"] = true;
  out.combine = Combine::add;
  return out;
}

Task tiles(const OpSpec& op, std::string id, Expr queue, Expr order, Region a, Region b, Region c) {
  Task out = gemm(op, std::move(id), std::move(order), std::move(a), std::move(b), std::move(c), false);
  out.kind = Kind::tiles;
  out.queue = std::move(queue);
  out.wait_by = WaitBy::kernel;
  return out;
}

void add_bias(Task* task, Range columns) {
  task->params["bias"] = true;
  task->reads.push_back(box("bias", {std::move(columns)}));
}

Task copy(std::string id, Expr queue, Expr order, std::vector<Loop> loops, Region from, Region to) {
  Task out;
  out.id = std::move(id);
  out.kind = Kind::copy;
  out.engine = Engine::ce;
  out.queue = std::move(queue);
  out.order = std::move(order);
  out.loops = std::move(loops);
  out.reads = {std::move(from)};
  out.writes = {std::move(to)};
  return out;
}

Task finish(const OpSpec& op, std::string id, Expr order, const std::string& buffer, const std::string& arrived,
            const std::string& credit) {
  std::vector<Range> nothing = {{0, 0}, all(gathers(op.op) ? "K" : "N")};
  if (buffer == "S") nothing.insert(nothing.begin(), Range{"r", 1});
  Task out = copy(std::move(id), 0, std::move(order), {chunks()}, box(buffer, nothing), box(buffer, nothing));
  out.engine = Engine::sm;
  out.waits = {wait_each(arrived, "s", "(r+p)%G", peers())};
  if (credit.empty()) return out;
  Set give = set_at(credit, 0, "(r+p)%G");
  give.each = peers_at_last("s");
  out.sets = {give};
  return out;
}

Wait credit_of(const std::string& credit, const std::string& to) {
  Wait out = wait_for(credit, 0, to);
  out.previous = true;
  return out;
}
Wait credit_from(const std::string& credit, const std::string& to) {
  Wait out = credit_of(credit, to);
  out.each = only_if_zero("z", "s");
  return out;
}

Set credit_to(const std::string& source, const std::string& is_last) {
  Set out = set_at("credit", 0, source);
  out.each = Loop{"z", 0, is_last};
  return out;
}

Expr lane_of_peer(const FamilyOptions& options) { return options.ce_queues == 1 ? Expr(0) : Expr("(p-1)%ce_queues"); }

Task reduce(std::string id, Expr queue, Expr order, std::vector<Loop> loops, std::vector<Region> sources, Region to) {
  Task out;
  out.id = std::move(id);
  out.kind = Kind::reduce;
  out.queue = std::move(queue);
  out.order = std::move(order);
  out.loops = std::move(loops);
  out.reads = std::move(sources);
  out.writes = {std::move(to)};
  return out;
}

Wait wait_for(std::string signal, Expr slot, Expr from) {
  return {.signal = std::move(signal), .slot = std::move(slot), .from = std::move(from)};
}
Wait wait_each(std::string signal, Expr slot, Expr from, Loop each) {
  Wait out = wait_for(std::move(signal), std::move(slot), std::move(from));
  out.each = std::move(each);
  return out;
}
Set set_at(std::string signal, Expr slot, Expr at) {
  return {.signal = std::move(signal), .slot = std::move(slot), .at = std::move(at)};
}

DType accumulator(const OpSpec& op) { return op.dtype == DType::fp64 ? DType::fp64 : DType::fp32; }

int64_t longest_shard(const Schedule& schedule) {
  const std::vector<int64_t>& off = schedule.tables.at("off");
  int64_t out = 0;
  for (size_t p = 0; p + 1 < off.size(); ++p) out = std::max(out, off[p + 1] - off[p]);
  return out;
}

namespace {

bool has_transport(const Schedule& schedule, const char* name) {
  const auto transport = schedule.params.find("transport");
  return transport != schedule.params.end() && transport->second == Param(std::string(name));
}

}  // namespace

bool takes_one_shot(const Schedule& schedule) { return has_transport(schedule, "one_shot"); }

bool is_tracked(const Schedule& schedule) { return has_transport(schedule, "tracked"); }

}  // namespace overlace::spec
