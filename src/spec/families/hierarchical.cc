// Teams that span hosts of equal size, ranks numbered host by host: each piece crosses the slow link between two hosts
// once. A rank exchanges with the rank of the same `local` on each other host, its gateways; the ranks of a host share
// what came, or sum up what goes, among themselves.
#include <utility>

#include "src/spec/families/families.h"
#include "src/spec/operators.h"

namespace overlace::spec {
namespace {

/// d: distance to another host, p: distance to another rank of this one, i: a rank of a host.
const char* const kHost = "((host+d)%hosts)";
const char* const kGateway = "((r+d*L)%G)";                          // sends to me
const char* const kTarget = "((r-d*L)%G)";                           // I send to
const char* const kNear = "(first+(local+p)%L)";                     // in turn
const char* const kOtherNear = "(first+p+min(1,max(0,p-local+1)))";  // p-th of the others, ascending
const char* const kFar = "(((host+d)%hosts)*L+i)";

Loop other_hosts() { return {"d", 1, "hosts"}; }
Loop near_peers() { return {"p", 1, "L"}; }
Loop other_near() { return {"p", 0, "L-1"}; }
Loop ranks_of_host() { return {"i", 0, "L"}; }
/// Chunk s from host d: chunk by chunk, so that the links to all hosts carry something.
std::string step() { return "(s*(hosts-1)+d-1)"; }

class Builder {
 public:
  Builder(Schedule* out, const OpSpec& op, Hosts how, const FamilyOptions& options)
      : out_(out),
        op_(op),
        options_(options),
        has_far_(options.hosts > 1),
        has_near_(options.hosts < op.ranks),
        is_serial_(how == Hosts::serial),
        is_measuring_(how == Hosts::comm || how == Hosts::limit) {
    out->params["hosts"] = options.hosts;
    out->consts["L"] = "G/hosts";
    out->consts["first"] = "host*L";
    if (how == Hosts::limit) add_apart();
  }

  void gather();
  void scatter();
  void gather_sums();

 private:
  /// `limit`: a GEMM that has to do with nothing.
  void add_apart();
  /// My chunks `from` to the ranks of my host and to my gateways, who pass them on. Lanes from `lane` on: slow link
  /// first.
  void spread(const Region& from, const std::string& inbox, const std::string& columns, const std::string& signal,
              int64_t lane);
  /// Waits of whoever uses what spread() brings: chunk s of my host's others, of all ranks of host d, or of everybody.
  std::vector<Wait> near_waits(const std::string& signal) const;
  std::vector<Wait> far_waits(const std::string& signal) const;
  std::vector<Wait> all_waits(const std::string& signal, const std::string& s) const;
  /// From now on the inboxes of this call may be written again, by all who write to me.
  std::vector<Set> credits(const std::string& s) const;
  Task product(const char* id, Expr order, const Region& a, const Region& c) const;
  void add_whole(const std::string& a, const std::string& c);
  /// An instance per chunk that moves nothing: for waits and credits.
  Task pause(const char* id, Expr order, const std::string& buffer) const;
  void gather_products();
  void scatter_products();
  void sum_of_host(const std::string& n);
  void sum_of_all();
  Task push(const char* id, const std::string& host, const std::string& slot, const char* after) const;
  /// The GEMM before a transfer, by its name in the schedule that overlaps.
  std::vector<std::string> behind(const char* product) const {
    return is_measuring_ ? std::vector<std::string>{} : std::vector<std::string>{is_serial_ ? "gemm" : product};
  }

  Schedule* out_;
  const OpSpec& op_;
  const FamilyOptions& options_;
  const bool has_far_, has_near_, is_serial_, is_measuring_;
};

void Builder::add_apart() {
  const bool is_ag = gathers(op_.op);
  out_->buffers.push_back(is_ag ? Buffer{"X0", Space::local, op_.dtype, {"M", "K"}}
                                : Buffer{"P0", Space::local, op_.out_dtype, {"M", "N"}});
  add_whole(is_ag ? "X0" : "A", is_ag ? "C" : "P0");
}

void Builder::add_whole(const std::string& a, const std::string& c) {
  add_plain_gemm(out_, op_, a, c, /*with_bias=*/gathers(op_.op));  // of sums it is added once, behind them
}

Task Builder::pause(const char* id, Expr order, const std::string& buffer) const {
  std::vector<Range> nothing = {{0, 0}, all(gathers(op_.op) ? "K" : "N")};
  if (buffer == "S") nothing.insert(nothing.begin(), Range{"r", 1});
  Task out = copy(id, 0, std::move(order), {chunks()}, box(buffer, nothing), box(buffer, nothing));
  out.engine = Engine::sm;
  return out;
}

void Builder::spread(const Region& from, const std::string& inbox, const std::string& columns,
                     const std::string& signal, int64_t lane) {
  const bool has_credit = gathers(op_.op);
  const auto add = [&](Task task, const std::string& to, const Expr& slot, const std::string& told) {
    if (has_credit) task.waits.push_back(credit_from("credit", to));
    task.sets = {set_at(told, slot, to)};
    if (!has_credit && task.id != "forward") task.deps = {is_measuring_ ? "finish" : "reduce"};
    out_->tasks.push_back(std::move(task));
  };
  if (has_far_) {
    add(copy("send", lane, "s*hosts+d", {chunks(), other_hosts()}, from,
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
  Task forward = copy("forward", lane + 1 + options_.ce_queues, step() + "*L+p",
                      {chunks(), other_hosts(), near_peers()}, box(inbox, rows), box_at(inbox, kNear, rows));
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

std::vector<Wait> Builder::all_waits(const std::string& signal, const std::string& s) const {
  std::vector<Wait> out;
  if (has_near_) out.push_back(wait_each(signal, s, kOtherNear, other_near()));
  if (has_far_) out.push_back(wait_each(signal, s, kGateway, other_hosts()));
  for (int64_t d = 1; has_near_ && d < options_.hosts; ++d)
    out.push_back(wait_each("forwarded", std::to_string(d - 1) + "*q+" + s, kOtherNear, other_near()));
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
  return gemm(op_, id, std::move(order), a, b_operand(op_), c, gathers(op_.op));
}

/// Own rows at once, then those of my host, then those of the others as they come.
void Builder::gather_products() {
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
    far.loops = {chunks(), other_hosts()};
    far.waits = far_waits("arrived");
    out_->tasks.push_back(std::move(far));
  }
}

void Builder::gather() {
  out_->buffers.push_back({"X", Space::symmetric, op_.dtype, {"M", "K"}, 2});
  out_->signals = {{"arrived", "q"}, {"credit", 1}};
  if (has_far_) out_->signals.push_back({"forwarded", "(hosts-1)*q"});
  out_->params["gathered"] = std::string("X");
  spread(box("A", {chunk_rows_in_shard("r"), all("K")}), "X", "K", "arrived", 0);

  if (is_measuring_) {
    Task finish = pause("finish", "1+s", "X");
    finish.waits = all_waits("arrived", "s");
    out_->tasks.push_back(std::move(finish));
  } else if (is_serial_) {
    out_->tasks.push_back(copy("copy_own", "2+ce_queues", 0, {}, box("A", {all("off[r+1]-off[r]"), all("K")}),
                               box("X", {shard_rows("r"), all("K")})));
    add_whole("X", "C");
    out_->tasks.back().deps = {"copy_own"};
    out_->tasks.back().waits = all_waits("arrived", "0");
  } else {
    gather_products();
  }
  // Forwarded rows are read out of X until the puts are done: credits go out behind them, at the end of the call.
  Task release = pause("release", "1+q*hosts", "X");
  release.loops.clear();
  if (has_far_ && has_near_) release.deps = {"forward"};
  release.sets = credits("(q-1)");
  out_->tasks.push_back(std::move(release));
}

/// Chunk s of the rows whose owners are the other ranks of that host, to them: they are the owners, or their gateways.
Task Builder::push(const char* id, const std::string& host, const std::string& slot, const char* after) const {
  const std::string owner = "(" + host + "*L+(local+p)%L)";
  Task out = copy(id, "1+(p-1)%ce_queues", "0", {chunks()}, box("P", {chunk_rows(owner), all("N")}),
                  box_at("S", kNear, {Range{host + "*L+local", 1}, chunk_rows_in_shard(owner), all("N")}));
  out.deps = behind(after);
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
  // Measured apart, a host's part crosses as it is: a sum would wait behind the GEMM that has to do with nothing.
  Task combine = is_measuring_
                     ? copy("combine", "3+2*ce_queues", n, {}, box("P", {chunk_rows(owner), all("N")}), box("U", sum))
                     : reduce("combine", 0, "2*" + n + "+3", {},
                              {slots("0", "local"), box("P", {chunk_rows(owner), all("N")}), slots("local+1", "L")},
                              box("U", sum));
  combine.loops = {chunks(), other_hosts()};
  combine.deps = behind("gemm_far");
  if (has_near_) combine.waits = {wait_each("arrived", "d*q+s", kOtherNear, other_near())};
  out_->tasks.push_back(std::move(combine));

  Task send = copy("send_sum", 0, n, {chunks(), other_hosts()}, box("U", sum),
                   box_at("H", owner, {Range{"host", 1}, chunk_rows_in_shard(owner), all("N")}));
  send.deps = {"combine"};
  send.waits = {credit_from("credit", owner)};
  send.sets = {set_at("summed", "s", owner)};
  out_->tasks.push_back(std::move(send));
}

/// My rows: hosts in order, in the place of my own the ranks in order.
void Builder::sum_of_all() {
  const auto wait_and_free = [&](Task task) {
    if (has_near_) task.waits = near_waits("arrived");
    if (has_far_) task.waits.push_back(wait_each("summed", "s", kGateway, other_hosts()));
    task.sets = credits("s");
    out_->tasks.push_back(std::move(task));
  };
  if (is_measuring_) return wait_and_free(pause("finish", "2*(q*hosts+s)+3", "S"));
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
                    box("Y", {returns_to_all(op_.op) ? chunk_rows("r") : rows, all("N")}));
  if (op_.bias) sum.params["bias"] = true;
  sum.deps = behind("gemm_own");
  wait_and_free(std::move(sum));
}

/// What crosses to other hosts is computed first, local rows last.
void Builder::scatter_products() {
  const auto rows = [&](const char* id, Expr order, const std::string& shard, const Loop& each) {
    out_->tasks.push_back(product(id, std::move(order), boxes("A", {chunk_rows(shard), all("K")}, each),
                                  boxes("P", {chunk_rows(shard), all("N")}, each)));
    out_->tasks.back().loops = {chunks()};
  };
  if (has_far_) {
    rows("gemm_far", "2*" + step(), kFar, ranks_of_host());
    out_->tasks.back().loops.push_back(other_hosts());
  }
  if (has_near_) rows("gemm_near", "2*(q*(hosts-1)+s)", kOtherNear, other_near());
  out_->tasks.push_back(
      product("gemm_own", "2*q*hosts+2", box("A", {shard_rows("r"), all("K")}), box("P", {shard_rows("r"), all("N")})));
}

/// A chunk's host sum is taken behind the GEMM after it, so that the partials of the other ranks have time to come.
void Builder::scatter() {
  out_->consts["shard_max"] = longest_shard(*out_);
  out_->buffers.push_back({"P", Space::local, op_.out_dtype, {"M", "N"}});
  out_->buffers.push_back({"S", Space::symmetric, op_.out_dtype, {"G", "shard_max", "N"}, 2});
  out_->signals = {{"arrived", "hosts*q"}, {"credit", 1}};
  if (has_far_) {
    out_->buffers.push_back({"U", Space::local, op_.out_dtype, {"hosts", "shard_max", "N"}});
    out_->buffers.push_back({"H", Space::symmetric, op_.out_dtype, {"hosts", "shard_max", "N"}, 2});
    out_->signals.push_back({"summed", "q"});
  }
  if (is_serial_) add_whole("A", "P");
  if (!is_serial_ && !is_measuring_) scatter_products();
  if (has_far_ && has_near_) {
    Task push_far = push("push_far", kHost, "d*q+s", "gemm_far");
    push_far.loops = {chunks(), other_hosts(), near_peers()};
    push_far.order = step() + "*L+p";
    out_->tasks.push_back(std::move(push_far));
  }
  if (has_far_) sum_of_host(step());
  if (has_near_) {
    Task push_near = push("push_near", "host", "s", "gemm_near");
    push_near.loops = {chunks(), near_peers()};
    push_near.order = "(q*(hosts-1)+s)*L+p";
    out_->tasks.push_back(std::move(push_near));
  }
  sum_of_all();
}

/// Each owner's sums to everybody's Z, and from there to Y. Z needs no credit: a rank sends sums to those only whose
/// partials or sums of this call have come, and they had done with the call before.
void Builder::gather_sums() {
  out_->buffers.push_back({"Z", Space::symmetric, op_.out_dtype, {"M", "N"}, 2});
  out_->signals.push_back({"ready", "q"});
  if (has_far_) out_->signals.push_back({"forwarded", "(hosts-1)*q"});
  spread(box(is_measuring_ ? "Z" : "Y", {chunk_rows("r"), all("N")}), "Z", "N", "ready", 1 + options_.ce_queues);
  if (is_measuring_) {
    Task finish = pause("finish_z", "2*(q*hosts+q+s)+3", "Z");
    finish.waits = all_waits("ready", "s");
    out_->tasks.push_back(std::move(finish));
    return;
  }
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
    Task far = take("copy_far", "2*q+" + step(), {chunks(), other_hosts()}, kFar, ranks_of_host());
    far.waits = far_waits("ready");
    out_->tasks.push_back(std::move(far));
  }
}

}  // namespace

template <Hosts kHow>
void make_hierarchical(Schedule* schedule, const OpSpec& op, const FamilyOptions& options) {
  Builder builder(schedule, op, kHow, options);
  if (gathers(op.op)) return builder.gather();
  builder.scatter();
  if (returns_to_all(op.op)) builder.gather_sums();
}
template void make_hierarchical<Hosts::overlapped>(Schedule*, const OpSpec&, const FamilyOptions&);
template void make_hierarchical<Hosts::serial>(Schedule*, const OpSpec&, const FamilyOptions&);
template void make_hierarchical<Hosts::comm>(Schedule*, const OpSpec&, const FamilyOptions&);
template void make_hierarchical<Hosts::limit>(Schedule*, const OpSpec&, const FamilyOptions&);

}  // namespace overlace::spec
