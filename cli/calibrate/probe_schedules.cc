#include "cli/calibrate/probe_schedules.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "src/base/format.h"

namespace overlace::cli {
namespace {

using spec::Engine;
using spec::Expr;
using spec::Kind;
using spec::Loop;
using spec::Range;
using spec::Region;
using spec::Schedule;
using spec::Space;
using spec::Task;

constexpr int64_t kFloat = 4;
constexpr const char* kFirst = "max(0,1-r)";              // 1 on rank 0, else 0
constexpr const char* kSecond = "max(0,1-max(r-1,1-r))";  // 1 on rank 1, else 0
constexpr const char* kOnce = "1";

Schedule frame(const char* name, int ranks) {
  Schedule out;
  out.op = "calibrate";
  out.family = name;
  out.params = {{"G", int64_t{ranks}}};
  return out;
}

Loop times(int count, const char* when = kOnce) { return {"s", 0, base::format("{}*{}", count, when)}; }

Region whole(const std::string& buffer, Expr rows, Expr cols, Expr at = "r") {
  return {buffer, std::move(at), {{0, std::move(rows)}, {0, std::move(cols)}}, {}};
}

/// D = X + Z, `elements` each.
Task sum(std::string id, int64_t elements, std::vector<Loop> loops) {
  Task out;
  out.id = std::move(id);
  out.kind = Kind::reduce;
  out.loops = std::move(loops);
  if (!out.loops.empty()) out.order = "s";
  out.reads = {whole("X", 1, elements), whole("Z", 1, elements)};
  out.writes = {whole("D", 1, elements)};
  return out;
}

void add_sum_buffers(Schedule* out, int64_t elements) {
  out->buffers.push_back({"X", Space::argument, DType::fp32, {1, elements}});
  out->buffers.push_back({"Z", Space::argument, DType::fp32, {1, elements}});
  out->buffers.push_back({"D", Space::local, DType::fp32, {1, elements}});
}

constexpr int64_t kTiny = kTinyReduce / (3 * kFloat);

}  // namespace

Schedule gemm_probe(int ranks, DType dtype, const spec::GemmWork& shape, int count) {
  Schedule out = frame("gemm", ranks);
  out.buffers = {{"A", Space::argument, dtype, {shape.m, shape.k}},
                 {"B", Space::argument, dtype, {shape.n, shape.k}},
                 {"C", Space::argument, dtype, {shape.m, shape.n}}};
  Task gemm;
  gemm.id = "gemm";
  gemm.loops = {times(count)};
  gemm.order = "s";
  gemm.params = {{"b_layout", std::string("nk")}};
  gemm.reads = {whole("A", shape.m, shape.k), whole("B", shape.n, shape.k)};
  gemm.writes = {whole("C", shape.m, shape.n)};
  out.tasks = {std::move(gemm)};
  return out;
}

Schedule copy_probe(int ranks, CopyWay way, int64_t bytes, int count, int64_t rows, bool has_posts) {
  Schedule out = frame("copy", ranks);
  const int64_t cols = bytes / kFloat / rows, pitch = rows > 1 ? 2 * cols : cols;
  const bool is_local = way == CopyWay::local;
  out.buffers = {{"X", Space::argument, DType::fp32, {rows, pitch}},
                 {"T", is_local ? Space::local : Space::symmetric, DType::fp32, {"G*" + std::to_string(rows), pitch}}};
  Task copy;
  copy.id = "copy";
  copy.kind = Kind::copy;
  copy.engine = Engine::ce;
  copy.loops = {times(count, way == CopyWay::pair ? kFirst : kOnce)};
  copy.order = "s";
  std::string to = is_local ? "r" : "(r+1)%G";
  if (way == CopyWay::all) {
    copy.loops.push_back({"p", 1, "G"});
    to = "(r+p)%G";
  }
  copy.reads = {whole("X", rows, cols)};
  copy.writes = {{"T", to, {{base::format("r*{}", rows), rows}, {0, cols}}, {}}};
  if (has_posts) {
    out.signals = {{"posted", 1}};
    copy.sets = {{"posted", 0, to}};
  }
  out.tasks = {std::move(copy)};
  return out;
}

Schedule link_probe(int ranks, int from, int to, int64_t bytes, int count) {
  Schedule out = copy_probe(ranks, CopyWay::pair, bytes, count);
  out.family = base::format("copy {} to {}", from, to);
  Task& copy = out.tasks.front();
  copy.loops = {times(count, base::format("max(0,1-max(r-{0},{0}-r))", from).c_str())};
  copy.writes.front().at = to;
  return out;
}

Schedule reduce_probe(int ranks, int64_t bytes, int count, bool has_signals) {
  Schedule out = frame("reduce", ranks);
  const int64_t elements = bytes / (3 * kFloat);
  add_sum_buffers(&out, elements);
  Task task = sum("sum", elements, {times(count)});
  if (has_signals) {
    out.signals = {{"done", 1}};
    task.sets = {{"done", 0, "(r+1)%G"}};
  }
  out.tasks = {std::move(task)};
  return out;
}

Schedule wait_probe(int ranks, int count) {
  Schedule out = frame("wait", ranks);
  add_sum_buffers(&out, kTiny);
  out.signals = {{"given", 1}};
  Task give = sum("give", kTiny, {});
  give.sets = {{"given", 0, "(r+1)%G"}};
  Task take = sum("take", kTiny, {times(count)});
  take.order = "1+s";
  take.waits = {{"given", 0, "(r+G-1)%G"}};
  out.tasks = {std::move(give), std::move(take)};
  return out;
}

Schedule flag_probe(int ranks, int count) {
  Schedule out = frame("flag", ranks);
  add_sum_buffers(&out, kTiny);
  out.signals = {{"ping", count}, {"pong", count}};
  Task ping = sum("ping", kTiny, {times(count, kFirst)});
  ping.waits = {{"pong", "max(0,s-1)", 1, 1, Loop{"z", 0, "min(1,s)"}}};
  ping.sets = {{"ping", "s", 1}};
  Task pong = sum("pong", kTiny, {times(count, kSecond)});
  pong.waits = {{"ping", "s", 0}};
  pong.sets = {{"pong", "s", 0}};
  out.tasks = {std::move(ping), std::move(pong)};
  return out;
}

Schedule event_probe(int ranks, int count) {
  Schedule out = frame("event", ranks);
  add_sum_buffers(&out, kTiny);
  out.buffers.push_back({"T", Space::symmetric, DType::fp32, {"G", kTiny}});
  for (int i = 0; i < count; ++i) {
    Task a = sum(base::format("sum_{}", i), kTiny, {});
    a.order = i;
    if (i > 0) a.deps = {base::format("copy_{}", i - 1)};
    Task b;
    b.id = base::format("copy_{}", i);
    b.kind = Kind::copy;
    b.engine = Engine::ce;
    b.order = i;
    b.reads = {whole("D", 1, kTiny)};
    b.writes = {{"T", "(r+1)%G", {{"r", 1}, {0, kTiny}}, {}}};
    b.deps = {a.id};
    out.tasks.push_back(std::move(a));
    out.tasks.push_back(std::move(b));
  }
  return out;
}

Schedule barrier_probe(int ranks, int count) {
  Schedule out = frame("barrier", ranks);
  Task barrier;
  barrier.id = "barrier";
  barrier.kind = Kind::barrier;
  barrier.loops = {times(count)};
  barrier.order = "s";
  out.tasks = {std::move(barrier)};
  return out;
}

Schedule collective_probe(int ranks, const std::string& name, int64_t bytes, int count) {
  Schedule out = frame("collective", ranks);
  const int64_t cols = bytes / kFloat / ranks;
  const bool is_gather = name == "all_gather", is_scatter = name == "reduce_scatter";
  for (int rank = 0; rank <= ranks; ++rank) out.tables["off"].push_back(rank);  // a row for each
  out.buffers = {{"X", Space::argument, DType::fp32, {is_gather ? "1" : "G", cols}},
                 {"D", Space::local, DType::fp32, {is_scatter ? "1" : "G", cols}}};
  Task task;
  task.id = name;
  task.kind = Kind::collective;
  task.loops = {times(count)};
  task.order = "s";
  task.params = {{"collective", name}};
  task.reads = {whole("X", is_gather ? "1" : "G", cols)};
  task.writes = {whole("D", is_scatter ? "1" : "G", cols)};
  out.tasks = {std::move(task)};
  return out;
}

void put_behind_lead(Schedule* work, int sums) {
  constexpr int64_t kElements = int64_t{64} << 20;
  for (Task& task : std::vector<Task>(work->tasks)) {  // copies go on lanes of their own: the first of them waits
    if (task.engine != Engine::ce || !task.deps.empty()) continue;
    const auto rest =
        std::find_if(work->tasks.begin(), work->tasks.end(), [&](const Task& t) { return t.id == task.id; });
    rest->loops.front().begin = "min(1," + rest->loops.front().end.text() + ")";
    task.loops.front().end = rest->loops.front().begin;
    task.id += "_first";
    task.deps = {"lead"};
    work->tasks.insert(rest, std::move(task));
  }
  for (const char* name : {"A_lead", "B_lead", "C_lead"})
    work->buffers.push_back({name, Space::argument, DType::fp32, {1, kElements}});
  work->signals.push_back({"led", 1});
  Task lead;
  lead.id = "lead";
  lead.kind = Kind::reduce;
  lead.loops = {{"l", 0, sums}};
  lead.order = base::format("l-{}", sums);
  lead.reads = {whole("A_lead", 1, kElements), whole("B_lead", 1, kElements)};
  lead.writes = {whole("C_lead", 1, kElements)};
  lead.sets = {{"led", 0, "(r+1)%G"}};
  work->tasks.insert(work->tasks.begin(), std::move(lead));
}

Schedule lead_probe(int ranks, int sums) {
  Schedule out = frame("lead", ranks);
  put_behind_lead(&out, sums);
  return out;
}

void add_barrier(Schedule* work) {
  Task barrier;
  barrier.id = "barrier";
  barrier.kind = Kind::barrier;
  barrier.queue = 1;
  barrier.deps = {work->tasks.front().id};
  work->tasks.push_back(std::move(barrier));
}

void add_copies_beside(Schedule* work, int64_t bytes, int copies, bool is_own) {
  const int64_t cols = bytes / kFloat;
  work->buffers.push_back({"W", Space::argument, DType::fp32, {1, cols}});
  work->buffers.push_back({"T", Space::symmetric, DType::fp32, {"G", cols}});
  Task copy;
  copy.id = "copy";
  copy.kind = Kind::copy;
  copy.engine = Engine::ce;
  copy.loops = {times(copies, is_own ? kOnce : kSecond)};
  copy.order = "s";
  if (is_own) copy.loops.push_back({"p", 1, "G"});
  copy.reads = {whole("W", 1, cols)};
  copy.writes = {{"T", is_own ? "(r+p)%G" : "0", {{"r", 1}, {0, cols}}, {}}};
  work->family += is_own ? " beside copies" : " beside arriving copies";
  work->tasks.push_back(std::move(copy));
}

Schedule on_first_rank(Schedule work) {
  Loop& loop = work.tasks.front().loops.front();
  loop.end = loop.end.text() + "*" + kFirst;
  return work;
}

}  // namespace overlace::cli
