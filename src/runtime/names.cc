#include "src/runtime/names.h"

#include <utility>

#include "src/base/format.h"

namespace overlace::runtime {
namespace {

const char* kind_text(WaitKind kind) {
  switch (kind) {
    case WaitKind::signal:
      return "signal";
    case WaitKind::word:
      return "word";
    case WaitKind::stream:
      return "stream";
    case WaitKind::barrier:
      return "barrier";
    case WaitKind::engine:
      return "engine";
    case WaitKind::counter:
      return "counter";
    case WaitKind::none:
      break;
  }
  return "wait";
}

std::string seconds(uint64_t ns) { return base::format("{:.1f} s", static_cast<double>(ns) * 1e-9); }

}  // namespace

void Names::set_team(uint32_t team, std::string name, std::vector<int> members) {
  const std::lock_guard lock(mutex_);
  teams_[team] = {std::move(name), std::move(members)};
}

void Names::set_ids(uint32_t first, uint32_t count, std::string name) {
  const std::lock_guard lock(mutex_);
  ids_[first] = {count, std::move(name)};
}

void Names::clear_ids(uint32_t first) {
  const std::lock_guard lock(mutex_);
  ids_.erase(first);
}

uint32_t Names::add_counters(std::string name) {
  const std::lock_guard lock(mutex_);
  counters_.push_back(std::move(name));
  return static_cast<uint32_t>(counters_.size());
}

std::string Names::counters(uint64_t number) const {
  const std::lock_guard lock(mutex_);
  return number == 0 || number > counters_.size() ? "" : counters_[number - 1];
}

std::string Names::team(uint32_t team) const {
  const std::lock_guard lock(mutex_);
  const auto it = teams_.find(team);
  return it == teams_.end() ? base::format("{}", team) : it->second.name;
}

int Names::world_rank(uint32_t team, uint32_t rank) const {
  const std::lock_guard lock(mutex_);
  const auto it = teams_.find(team);
  return it == teams_.end() || rank >= it->second.members.size() ? -1 : it->second.members[rank];
}

std::string Names::id(uint32_t id) const {
  const std::lock_guard lock(mutex_);
  auto it = ids_.upper_bound(id);
  if (it == ids_.begin()) return "";
  --it;
  return id - it->first < it->second.count ? it->second.name : "";
}

std::string pipeline_text(int rank, uint64_t timeout_ns) {
  return base::format(
      "timeout after {}: rank {}: a stage of a fused kernel's own pipeline has not come, wanted at once; "
      "results of fused kernels of this rank are wrong since then",
      seconds(pipeline_timeout_ns(timeout_ns)), rank);
}

std::string Names::timeout_text(const TimeoutRecord& record, const std::string& peer_state) const {
  return base::format("timeout after {}: {}", seconds(record.waited_ns), wait_text(record, peer_state));
}

std::string Names::wait_text(const TimeoutRecord& record, const std::string& peer_state) const {
  std::string name = record.kind == WaitKind::word      ? ""
                     : record.kind == WaitKind::counter ? counters(record.extra)
                                                        : id(record.id);
  const std::string op = name.substr(0, name.find('.'));
  if (!name.empty()) name += ", ";
  std::string text = base::format(
      "rank {} waited for rank {}, team \"{}\", {} {} ({}block {}): expected >= {}, seen {}, "
      "last change {} ago",
      record.rank, record.peer, team(record.team), kind_text(record.kind), record.id, name, record.block,
      record.expected, record.seen, seconds(record.last_change_ns));
  if (record.call != 0) text += base::format("; {} call {}", op.empty() ? "channel" : op, record.call);
  return text + "; peer state " + peer_state;
}

}  // namespace overlace::runtime
