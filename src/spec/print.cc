#include <algorithm>
#include <string>
#include <vector>

#include "overlace/schedule.h"
#include "src/base/format.h"
#include "src/spec/names.h"

namespace overlace::spec {

namespace {

std::string loops_of(const std::vector<Loop>& loops) {
  std::string out;
  for (const Loop& loop : loops) {
    out += (out.empty() ? "[" : ", ") + loop.var + "=" + loop.begin.text() + ".." + loop.end.text();
  }
  return out.empty() ? out : out + "]";
}

/// "for p=1..G" in words of the reader; half open, as loops are.
std::string each_of(const std::optional<Loop>& each) {
  return each ? " for " + each->var + "=" + each->begin.text() + ".." + each->end.text() : "";
}

std::string buffers_of(const std::vector<Region>& regions) {
  std::string out;
  for (const Region& region : regions) {
    out += (out.empty() ? "" : ", ") + region.buffer;
    if (region.at.text() != "r") out += "@(" + region.at.text() + ")";
  }
  return out;
}

std::string line_of(const Task& task) {
  std::string out =
      base::format("  {} {}: {}{}: {} {} -> {}", name_of(task.engine), task.queue.text(), task.id, loops_of(task.loops),
                   name_of(task.kind), buffers_of(task.reads), buffers_of(task.writes));
  if (task.combine == Combine::add) out += " (adds)";
  for (const std::string& dep : task.deps) out += "; after " + dep;
  for (const Wait& wait : task.waits) {
    out += base::format("; waits {}[{}] of {}{}{}", wait.signal, wait.slot.text(), wait.from.text(), each_of(wait.each),
                        wait.previous ? " (epoch before)" : "");
  }
  for (const Set& set : task.sets) {
    out += base::format("; sets {}[{}] at {}{}", set.signal, set.slot.text(), set.at.text(), each_of(set.each));
  }
  return out + "\n";
}

}  // namespace

std::string Schedule::to_string() const {
  std::string out = base::format("{} {}", op, family);
  for (const char* name : {"M", "N", "K", "G", "q", "dtype"}) {
    const auto it = params.find(name);
    if (it != params.end()) out += base::format(" {} {}", name, text_of(it->second));
  }
  out += "\n  buffers:";
  for (const Buffer& buffer : buffers) {
    std::string shape;
    for (const Expr& extent : buffer.shape) shape += (shape.empty() ? "" : ", ") + extent.text();
    out += base::format(" {} ({}) {} {}{}", buffer.name, shape, dtype_name(buffer.dtype), name_of(buffer.space),
                        buffer.depth > 1 ? " x" + std::to_string(buffer.depth) : "");
    if (&buffer != &buffers.back()) out += ",";
  }
  out += "\n";
  std::vector<const Task*> sorted;
  for (const Task& task : tasks) sorted.push_back(&task);
  std::stable_sort(sorted.begin(), sorted.end(), [](const Task* a, const Task* b) { return a->engine < b->engine; });
  for (const Task* task : sorted) out += line_of(*task);
  return out;
}

}  // namespace overlace::spec
