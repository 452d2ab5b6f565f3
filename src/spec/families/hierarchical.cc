// Teams that span hosts of equal size, ranks numbered host by host: each piece crosses the slow link between two hosts
// once. A rank exchanges with the rank of the same `local` on each other host, its gateways; the ranks of a host share
// what came, or sum up what goes, among themselves.
#include <utility>

#include "src/spec/families/families.h"

namespace overlace::spec {
namespace {

/// d: distance to another host, p: distance to another rank of this one, i: a rank of a host.
const char* const kHost = "((host+d)%hosts)";
const char* const kGateway = "((r+d*L)%G)";                          // sends to me
const char* const kTarget = "((r-d*L)%G)";                           // I send to
const char* const kNear = "(first+(local+p)%L)";                     // in turn
const char* const kOtherNear = "(first+p+min(1,max(0,p-local+1)))";  // p-th of the others, ascending
const char* const kFar = "(((host+d)%hosts)*L+i)";

Loop hosts() { return {"d", 1, "hosts"}; }
Loop near_peers() { return {"p", 1, "L"}; }
Loop other_near() { return {"p", 0, "L-1"}; }
Loop ranks_of_host() { return {"i", 0, "L"}; }
/// Chunk s from host d: chunk by chunk, so that the links to all hosts carry something.
std::string step() { return "(s*(hosts-1)+d-1)"; }

class Builder {
 public:
  Builder(Schedule* out, const OpSpec& op, const FamilyOptions& options)
      : out_(out), op_(op), options_(options), has_far_(options.hosts > 1), has_near_(options.hosts < op.ranks) {
    out->params["hosts"] = options.hosts;
    out->consts["L"] = "G/hosts";
    out->consts["first"] = "host*L";
  }

  void ag_gemm();
  void scatter();
  void gather_sums();

 private:
  /// My chunks `from` to the ranks of my host and to my gateways, who pass them on. Lanes from `lane` on: slow link
  /// first.
  void spread(const Region& from, const std::string& inbox, const std::string& columns, const std::string& signal,
              int64_t lane);
  /// Waits of whoever uses what spread() brings: chunk s of my host's others, or of all ranks of host d.
  std::vector<Wait> near_waits(const std::string& signal) const;
  std::vector<Wait> far_waits(const std::string& signal) const;
  /// From now on the inboxes of this call may be written again, by all who write to me.
  std::vector<Set> credits(const std::string& s) const;
  Task product(const char* id, Expr order, const Region& a, const Region& b) const;
  void sum_of_host(const std::string& n);
  void sum_of_all();
  Task push(const char* id, const std::string& host, const std::string& slot, const char* after) const;

  Schedule* out_;
  const OpSpec& op_;
  const FamilyOptions& options_;
  const bool has_far_, has_near_;
};

void Builder::spread(const Region& from, const std::string& inbox, const std::string& columns,
                     const std::string& signal, int64_t lane) {
  const bool has_credit = op_.op == "ag_gemm";
  const auto add = [&](Task task, const std::string& to, const Expr& slot, const std::string& told) {
    if (has_credit) task.waits.push_back(credit_from("credit", to));
    task.sets = {set_at(told, slot, to)};
    if (!has_credit && task.id != "forward") task.deps = {"reduce"};
    out_->tasks.push_back(std::move(task));
  };
  if (has_far_) {
    add(copy("send", lane, "s*hosts+d", {chunks(), hosts()}, from,
             box_at(inbox, kTarget, {chunk_rows("r"), all(columns)})),
        kTarget, "s", signal);
  }
  if (!has_near_) return;
  const std::string queue = std::to_string(lane + 1) + "+(p-1)%ce_queues";
  add(copy("push", queue, "s*L+p", {chunks(), near_peers()}, from,
           box_at(inbox, "(first+(local-p)%L)", {chunk_rows("r"), all(columns)})),
      "(first+(local-p)%L)", "s", signal);
  if (!has_far_) return;
  const std::vector<Range> rows = {chunk_rows(kGateway), all(columns)};
  Task forward = copy("forward", lane + 1 + options_.ce_queues, step() + "*L+p", {chunks(), hosts(), near_peers()},
                      box(inbox, rows), box_at(inbox, kNear, rows));
  forward.waits = {wait_for(signal, "s", kGateway)};
  add(std::move(forward), kNear, "(d-1)*q+s", "forwarded");
}

std::vector<Wait> Builder::near_waits(const std::string& signal) const {
  return {wait_each(signal, "s", kOtherNear, other_near())};
}

std::vector<Wait> Builder::far_waits(const std::string& signal) const {
  std::vector<Wait> out = {wait_for(signal, "s", kGateway)};
  if (has_near_) out.push_back(wait_each("forwarded", "(d-1)*q+s", kOtherNear, other_near()));
  return out;
}

std::vector<Set> Builder::credits(const std::string& s) const {
  const std::string is_last = "max(0," + s + "-q+2)";
  Set to_near = set_at("credit", 0, kNear), to_far = set_at("credit", 0, kGateway);
  to_near.each = Loop{"p", 1, "1+(L-1)*" + is_last};
  to_far.each = Loop{"d", 1, "1+(hosts-1)*" + is_last};
  return {to_near, to_far};
}

Task Builder::product(const char* id, Expr order, const Region& a, const Region& c) const {
  return gemm(op_, id, std::move(order), a, b_operand(op_), c, op_.op == "ag_gemm");
}

/// Own rows at once, then those of my host, then those of the others as they come.
void Builder::ag_gemm() {
  out_->buffers.push_back({"X", Space::symmetric, op_.dtype, {"M", "K"}, 2});
  out_->signals = {{"arrived", "q"}, {"credit", 1}};
  if (has_far_) out_->signals.push_back({"forwarded", "(hosts-1)*q"});
  out_->params["gathered"] = std::string("X");
  spread(box("A", {chunk_rows_in_shard("r"), all("K")}), "X", "K", "arrived", 0);

  const auto use = [&](const char* id, Expr order, const std::string& shard, const Loop& each) {
    return product(id, std::move(order), boxes("X", {chunk_rows(shard), all("K")}, each),
                   boxes("C", {chunk_rows(shard), all("N")}, each));
  };
  out_->tasks.push_back(
      product("gemm_own", 0, box("A", {all("off[r+1]-off[r]"), all("K")}), box("C", {shard_rows("r"), all("N")})));
  if (has_near_) {
    Task near = use("gemm_near", "1+s", kOtherNear, other_near());
    near.loops = {chunks()};
    near.waits = near_waits("arrived");
    out_->tasks.push_back(std::move(near));
  }
  if (has_far_) {
    Task far = use("gemm_far", "1+q+" + step(), kFar, ranks_of_host());
    far.loops = {chunks(), hosts()};
    far.waits = far_waits("arrived");
    out_->tasks.push_back(std::move(far));
  }
  // Forwarded rows are read out of X until the puts are done: credits go out behind them, at the end of the call.
  const std::vector<Range> nothing = {{0, 0}, all("K")};
  Task release = copy("release", 0, "1+q*hosts", {}, box("X", nothing), box("X", nothing));
  release.engine = Engine::sm;
  if (has_far_ && has_near_) release.deps = {"forward"};
  release.sets = credits("(q-1)");
  out_->tasks.push_back(std::move(release));
}

/// Chunk s of the rows whose owners are the other ranks of that host, to them: they are the owners, or their gateways.
Task Builder::push(const char* id, const std::string& host, const std::string& slot, const char* after) const {
  const std::string owner = "(" + host + "*L+(local+p)%L)";
  Task out = copy(id, "1+(p-1)%ce_queues", "0", {chunks()}, box("P", {chunk_rows(owner), all("N")}),
                  box_at("S", kNear, {Range{host + "*L+local", 1}, chunk_rows_in_shard(owner), all("N")}));
  out.deps = {after};
  out.waits = {credit_from("credit", kNear)};
  out.sets = {set_at("arrived", slot, kNear)};
  return out;
}

/// My host's partials of rows that another host owns, one sum of them: ranks in order, rounded once to cross.
void Builder::sum_of_host(const std::string& n) {
  const std::string owner = kGateway;
  const auto slots = [&](const char* begin, const char* end) {
    return boxes("S", {Range{std::string(kHost) + "*L+i", 1}, chunk_rows_in_shard(owner), all("N")}, {"i", begin, end});
  };
  const std::vector<Range> sum = {Range{kHost, 1}, chunk_rows_in_shard(owner), all("N")};
  Task combine =
      reduce("combine", 0, "2*" + n + "+3", {chunks(), hosts()},
             {slots("0", "local"), box("P", {chunk_rows(owner), all("N")}), slots("local+1", "L")}, box("U", sum));
  combine.deps = {"gemm_far"};
  if (has_near_) combine.waits = {wait_each("arrived", "d*q+s", kOtherNear, other_near())};
  out_->tasks.push_back(std::move(combine));

  Task send = copy("send_sum", 0, n, {chunks(), hosts()}, box("U", sum),
                   box_at("H", owner, {Range{"host", 1}, chunk_rows_in_shard(owner), all("N")}));
  send.deps = {"combine"};
  send.waits = {credit_from("credit", owner)};
  send.sets = {set_at("summed", "s", owner)};
  out_->tasks.push_back(std::move(send));
}

/// My rows: hosts in order, in the place of my own the ranks in order.
void Builder::sum_of_all() {
  const auto rows = chunk_rows_in_shard("r");
  const auto sums = [&](const char* begin, const char* end) {
    return boxes("H", {Range{"i", 1}, rows, all("N")}, {"i", begin, end});
  };
  const auto slots = [&](const char* begin, const char* end) {
    return boxes("S", {Range{"first+i", 1}, rows, all("N")}, {"i", begin, end});
  };
  std::vector<Region> sources = {slots("0", "local"), box("P", {chunk_rows("r"), all("N")}), slots("local+1", "L")};
  if (has_far_) {
    sources.insert(sources.begin(), sums("0", "host"));
    sources.push_back(sums("host+1", "hosts"));
  }
  if (op_.bias) sources.push_back(box("bias", {all("N")}));
  Task sum = reduce("reduce", 1, "s", {chunks()}, std::move(sources),
                    box("Y", {op_.op == "gemm_ar" ? chunk_rows("r") : rows, all("N")}));
  if (op_.bias) sum.params["bias"] = true;
  sum.deps = {"gemm_own"};
  if (has_near_) sum.waits = near_waits("arrived");
  if (has_far_) sum.waits.push_back(wait_each("summed", "s", kGateway, hosts()));
  sum.sets = credits("s");
  out_->tasks.push_back(std::move(sum));
}

/// What crosses to other hosts is computed first, own rows last. A chunk's host sum is taken behind the product after
/// it, so that the partials of the other ranks have time to come.
void Builder::scatter() {
  out_->consts["shard_max"] = longest_shard(*out_);
  out_->buffers.push_back({"P", Space::local, op_.out_dtype, {"M", "N"}});
  out_->buffers.push_back({"S", Space::symmetric, op_.out_dtype, {"G", "shard_max", "N"}, 2});
  out_->signals = {{"arrived", "hosts*q"}, {"credit", 1}};
  const auto rows = [&](const char* id, Expr order, const std::string& shard, const Loop& each) {
    return product(id, std::move(order), boxes("A", {chunk_rows(shard), all("K")}, each),
                   boxes("P", {chunk_rows(shard), all("N")}, each));
  };
  if (has_far_) {
    out_->buffers.push_back({"U", Space::local, op_.out_dtype, {"hosts", "shard_max", "N"}});
    out_->buffers.push_back({"H", Space::symmetric, op_.out_dtype, {"hosts", "shard_max", "N"}, 2});
    out_->signals.push_back({"summed", "q"});
    Task far = rows("gemm_far", "2*" + step(), kFar, ranks_of_host());
    far.loops = {chunks(), hosts()};
    out_->tasks.push_back(std::move(far));
    if (has_near_) {
      Task push_far = push("push_far", kHost, "d*q+s", "gemm_far");
      push_far.loops = {chunks(), hosts(), near_peers()};
      push_far.order = step() + "*L+p";
      out_->tasks.push_back(std::move(push_far));
    }
    sum_of_host(step());
  }
  if (has_near_) {
    Task near = rows("gemm_near", "2*(q*(hosts-1)+s)", kOtherNear, other_near());
    near.loops = {chunks()};
    out_->tasks.push_back(std::move(near));
    Task push_near = push("push_near", "host", "s", "gemm_near");
    push_near.loops = {chunks(), near_peers()};
    push_near.order = "(q*(hosts-1)+s)*L+p";
    out_->tasks.push_back(std::move(push_near));
  }
  out_->tasks.push_back(
      product("gemm_own", "2*q*hosts+2", box("A", {shard_rows("r"), all("K")}), box("P", {shard_rows("r"), all("N")})));
  sum_of_all();
}

/// Each owner's sums to everybody's Z, and from there to Y. Z needs no credit: a rank sends sums to those only whose
/// partials or sums of this call have come, and they had done with the call before.
void Builder::gather_sums() {
  out_->buffers.push_back({"Z", Space::symmetric, op_.out_dtype, {"M", "N"}, 2});
  out_->signals.push_back({"ready", "q"});
  if (has_far_) out_->signals.push_back({"forwarded", "(hosts-1)*q"});
  spread(box("Y", {chunk_rows("r"), all("N")}), "Z", "N", "ready", 1 + options_.ce_queues);
  const auto take = [&](const char* id, Expr order, std::vector<Loop> loops, const std::string& shard,
                        const Loop& each) {
    Task task = copy(id, 1, std::move(order), std::move(loops), boxes("Z", {chunk_rows(shard), all("N")}, each),
                     boxes("Y", {chunk_rows(shard), all("N")}, each));
    task.engine = Engine::sm;
    return task;
  };
  if (has_near_) {
    Task near = take("copy_near", "q+s", {chunks()}, kOtherNear, other_near());
    near.waits = near_waits("ready");
    out_->tasks.push_back(std::move(near));
  }
  if (has_far_) {
    Task far = take("copy_far", "2*q+" + step(), {chunks(), hosts()}, kFar, ranks_of_host());
    far.waits = far_waits("ready");
    out_->tasks.push_back(std::move(far));
  }
}

}  // namespace

Schedule make_hierarchical(const OpSpec& op, const FamilyOptions& options) {
  Schedule out = frame(op, "hierarchical", options);
  Builder builder(&out, op, options);
  if (op.op == "ag_gemm") {
    builder.ag_gemm();
  } else {
    builder.scatter();
    if (op.op == "gemm_ar") builder.gather_sums();
  }
  return out;
}

}  // namespace overlace::spec
