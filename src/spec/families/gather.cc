// What ag_gemm and ag_wgrad share: how the rows come together, and the families in which no GEMM begins before.
#include <string>
#include <string_view>
#include <utility>

#include "src/spec/families/families.h"

namespace overlace::spec {
namespace {

/// The scales of a buffer's rows, where rows have some.
void add_row_scales(Schedule* schedule, const OpSpec& op, const std::string& buffer, Space space, int depth) {
  if (op.scales == Scales::rows) schedule->buffers.push_back({scale_of(buffer), space, DType::fp32, {"M", 1}, depth});
}

/// X: the gathered rows at their place in the whole; `arrived[chunk]` of each sender; `credit` back to the senders.
void add_gather_inbox(Schedule* schedule, const OpSpec& op) {
  schedule->buffers.push_back({"X", Space::symmetric, op.dtype, {"M", "K"}, 2});
  add_row_scales(schedule, op, "X", Space::symmetric, 2);
  schedule->signals = {{"arrived", "q"}, {"credit", 1}};
  schedule->params["gathered"] = std::string("X");
}

const Range kOneColumn = {0, 1};

/// My rows' scales to all peers, in front of the rows in their lanes: the signals of the rows tell of them.
void add_push_of_scales(Schedule* schedule, const FamilyOptions& options) {
  Task push = copy("push_scales", lane_of_peer(options), "p-G", {peers()},
                   box(scale_of("A"), {all("off[r+1]-off[r]"), kOneColumn}),
                   box_at(scale_of("X"), "(r-p)%G", {shard_rows("r"), kOneColumn}));
  push.waits = {credit_of("credit", "(r-p)%G")};
  schedule->tasks.push_back(std::move(push));
}

/// My chunks (`is_slab`: slabs of columns of my rows) to all peers, nearest user first: rank r-1 computes on my shard
/// right after its own, r-2 one later.
void add_push(Schedule* schedule, const FamilyOptions& options, bool is_slab) {
  const Region from = box("A", is_slab ? std::vector<Range>{all("off[r+1]-off[r]"), slab_columns()}
                                       : std::vector<Range>{chunk_rows_in_shard("r"), all("K")});
  const Region to = box_at(
      "X", "(r-p)%G",
      is_slab ? std::vector<Range>{shard_rows("r"), slab_columns()} : std::vector<Range>{chunk_rows("r"), all("K")});
  Task push = copy("push", lane_of_peer(options), "s*G+p", {chunks(), peers()}, from, to);
  push.waits = {credit_from("credit", "(r-p)%G")};
  push.sets = {set_at("arrived", "s", "(r-p)%G")};
  schedule->tasks.push_back(std::move(push));
}

/// Whole gather by copies, then the whole GEMM.
void add_serial(Schedule* schedule, const OpSpec& op) {
  add_copy_own(schedule, op, /*is_slab=*/false);
  add_plain_gemm(schedule, op, "X", "C");
  Task& whole = schedule->tasks.back();
  whole.deps = {"copy_own"};
  whole.waits = {wait_each("arrived", 0, "(r+p)%G", peers())};
  whole.sets = {{.signal = "credit", .slot = 0, .at = "(r+p)%G", .each = peers()}};
}

/// A GEMM that waits for nothing.
void add_product_alone(Schedule* schedule, const OpSpec& op, const std::string& a) {
  schedule->buffers.push_back({a, Space::local, op.dtype, {"M", "K"}});
  add_row_scales(schedule, op, a, Space::local, 1);
  add_plain_gemm(schedule, op, a, "C");
}

/// Makes swiglu of what `product` has written to H. A box at a time: `each` becomes a loop.
Task swiglu_of(const Task& product) {
  Region to = product.writes[0];
  Task out;
  out.id = "swiglu" + product.id.substr(std::string_view("gemm").size());
  out.kind = Kind::reduce;
  out.queue = 1;
  out.order = product.order;
  out.loops = product.loops;
  if (to.each) out.loops.push_back(*to.each);
  to.each.reset();
  out.params["activation"] = std::string("swiglu");
  out.reads = {box("H", to.dims)};
  to.dims[1] = all("N/2");
  out.writes = {std::move(to)};
  out.deps = {product.id};
  return out;
}

}  // namespace

void add_swiglu(Schedule* schedule, const OpSpec& op) {
  if (op.activation == Activation::none) return;
  schedule->params["activation"] = std::string("swiglu");
  for (Buffer& buffer : schedule->buffers)
    if (buffer.name == "C") buffer.shape[1] = "N/2";
  std::vector<Task> behind;
  for (Task& task : schedule->tasks) {
    if (task.writes[0].buffer != "C") continue;
    if (task.kind == Kind::gemm) {
      behind.push_back(swiglu_of(task));
      task.writes[0].buffer = "H";
    } else {
      task.params["activation"] = std::string("swiglu");
      task.writes[0].dims[1] = all("N/2");
    }
  }
  if (behind.empty()) return;
  schedule->buffers.push_back({"H", Space::local, op.out_dtype, {"M", "N"}});
  for (Task& task : behind) schedule->tasks.push_back(std::move(task));
}

void add_copy_own(Schedule* schedule, const OpSpec& op, bool is_slab) {
  if (op.scales == Scales::rows)  // in front of the rows in their lane
    schedule->tasks.push_back(copy("copy_scales", "ce_queues", -1, {},
                                   box(scale_of("A"), {all("off[r+1]-off[r]"), kOneColumn}),
                                   box(scale_of("X"), {shard_rows("r"), kOneColumn})));
  const Region from = box("A", is_slab ? std::vector<Range>{all("off[r+1]-off[r]"), slab_columns()}
                                       : std::vector<Range>{chunk_rows_in_shard("r"), all("K")});
  const Region to = box("X", is_slab ? std::vector<Range>{shard_rows("r"), slab_columns()}
                                     : std::vector<Range>{chunk_rows("r"), all("K")});
  schedule->tasks.push_back(copy("copy_own", "ce_queues", "s", {chunks()}, from, to));
}

Set credit_at_last() {
  Set out = set_at("credit", 0, "(r+p)%G");
  out.each = peers_at_last("s");
  return out;
}

void add_gather(Schedule* schedule, const OpSpec& op, const FamilyOptions& options, bool is_slab) {
  if (is_slab) cut_slabs(schedule, op.k, options);
  add_gather_inbox(schedule, op);
  if (op.scales == Scales::rows) add_push_of_scales(schedule, options);
  add_push(schedule, options, is_slab);
}

void make_gather_library(Schedule* schedule, const OpSpec& op, const FamilyOptions&) {
  schedule->buffers.push_back({"X", Space::local, op.dtype, {"M", "K"}});
  schedule->params["gathered"] = std::string("X");
  add_row_scales(schedule, op, "X", Space::local, 1);
  const auto gather = [&](const char* id, Expr order, const std::string& from, const std::string& to,
                          const Range& columns) {
    Task task;
    task.id = id;
    task.kind = Kind::collective;
    task.order = std::move(order);
    task.params = {{"collective", std::string("all_gather")}};
    task.reads = {box(from, {all("off[r+1]-off[r]"), columns})};
    task.writes = {box(to, {all("M"), columns})};
    schedule->tasks.push_back(std::move(task));
  };
  if (op.scales == Scales::rows) gather("gather_scales", -1, scale_of("A"), scale_of("X"), kOneColumn);
  gather("all_gather", 0, "A", "X", all("K"));
  add_plain_gemm(schedule, op, "X", "C");
  schedule->tasks.back().order = 1;
}

void make_gather_serial(Schedule* schedule, const OpSpec& op, const FamilyOptions& options) {
  if (options.hosts > 1) return make_hierarchical<Hosts::serial>(schedule, op, options);
  add_gather(schedule, op, options, /*is_slab=*/false);
  add_serial(schedule, op);
}

void make_gather_compute(Schedule* schedule, const OpSpec& op, const FamilyOptions&) {
  add_product_alone(schedule, op, "X");
}

void make_gather_comm(Schedule* schedule, const OpSpec& op, const FamilyOptions& options) {
  if (options.hosts > 1) return make_hierarchical<Hosts::comm>(schedule, op, options);
  add_gather(schedule, op, options, /*is_slab=*/false);
  schedule->tasks.push_back(finish(op, "finish", "1+s", "X", "arrived", "credit"));
}

void make_gather_limit(Schedule* schedule, const OpSpec& op, const FamilyOptions& options) {
  if (options.hosts > 1) return make_hierarchical<Hosts::limit>(schedule, op, options);
  add_gather(schedule, op, options, /*is_slab=*/false);
  add_product_alone(schedule, op, "X0");
  schedule->tasks.push_back(finish(op, "finish", "1+s", "X", "arrived", "credit"));
}

}  // namespace overlace::spec
