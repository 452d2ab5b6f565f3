#include "src/spec/check.h"

#include <algorithm>
#include <set>
#include <utility>

#include "src/base/format.h"
#include "src/spec/checks/graph.h"

namespace overlace::spec {
namespace {

constexpr int64_t kMaxGraph = 1'000'000;
constexpr int64_t kMaxPairs = 10'000'000;
constexpr int64_t kMaxPartBytes = int64_t{256} << 20;
constexpr int kMaxRanks = 4096;
constexpr int64_t kMaxTeamItems = 1'000'000;  // of all ranks together: an instance takes some 500 bytes

template <class List, class Name>
void check_unique(const List& list, std::string_view what, Name name, Findings* out) {
  std::set<std::string> seen;
  for (const auto& item : list) {
    if (!seen.insert(name(item)).second) out->error("S1", name(item), 0, base::format("two {} have this name", what));
  }
}

void check_names(const Schedule& schedule, Findings* out) {
  check_unique(
      schedule.tasks, "tasks", [](const Task& t) { return t.id; }, out);
  check_unique(
      schedule.buffers, "buffers", [](const Buffer& b) { return b.name; }, out);
  check_unique(
      schedule.signals, "signals", [](const SignalDecl& s) { return s.name; }, out);
}

/// False if somebody waits for himself: nothing that follows would mean anything.
bool check_circles(const AllRanks& team, Findings* out) {
  for (const Graph::Edges edges : {Graph::deps_and_signals, Graph::progress}) {
    const auto circle = Graph(team, 1, edges).circle();
    if (circle.empty()) continue;
    const bool is_s3 = edges == Graph::deps_and_signals;
    out->error(is_s3 ? "S3" : "S7", team.id(circle[0].first, circle[0].second), circle[0].first,
               base::format("{}: {}", is_s3 ? "waits for adds that depend on it" : "lanes and signals deadlock",
                            names_of(team, circle)));
    return false;
  }
  return true;
}

void check_team(const Schedule& schedule, int ranks, const Machine& machine, const CheckOptions& options,
                Findings* out) {
  if (ranks > kMaxRanks)
    return out->error("S1", schedule.family, 0, base::format("{} ranks, at most {}", ranks, kMaxRanks));
  AllRanks team{&schedule, {}};
  int64_t num_items = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    base::Result<Expansion> expansion = expand(schedule, rank, ranks);
    if (!expansion.ok()) {
      const std::string& message = expansion.status().message();
      const size_t colon = message.find(':');
      return out->error(message.substr(0, colon), schedule.family, rank,
                        message.substr(std::min(colon + 2, message.size())));
    }
    num_items += expansion->num_items;
    if (num_items > kMaxTeamItems) {
      return out->error("S1", schedule.family, rank,
                        base::format("{} ranks need more than {} instances, regions, waits, sets, dependencies and "
                                     "words of signals",
                                     ranks, kMaxTeamItems));
    }
    team.ranks.push_back(std::move(expansion).value());
  }
  check_machine(team, machine, out);
  const int before = out->num_errors();
  if (const base::Status listed = team.list_items(); !listed.ok())
    out->error("S7", schedule.family, 0, listed.message());
  check_extents(team, out);
  check_scopes(team, out);
  check_counts(team, out);
  if (out->num_errors() > before || !check_circles(team, out)) return;

  const int epochs = team.depth() + 1;
  if (team.num_instances() * epochs > kMaxGraph) {
    return out->warn("S5", schedule.family, 0,
                     base::format("{} instances of {} ranks in {} epochs: S5 to S10 not checked", team.num_instances(),
                                  ranks, epochs));
  }
  if (const int64_t bytes = Graph::bytes_of_parts(team, epochs); bytes > kMaxPartBytes) {
    return out->warn(
        "S5", schedule.family, 0,
        base::format("{} bytes for the order of a kernel's parts on {} ranks: S5 to S10 not checked", bytes, ranks));
  }
  if (const int64_t pairs = num_pairs(team); pairs > kMaxPairs) {
    return out->warn("S5", schedule.family, 0,
                     base::format("{} pairs of accesses to the same rows: S5 to S10 not checked", pairs));
  }
  const Graph graph(team, epochs, Graph::happens_before);
  check_residency(team, machine, graph, out);
  check_queues(team, machine, out);
  const int ordered = out->num_errors();
  check_races(team, graph, out);
  if (out->num_errors() > ordered) return;  // what a race leaves behind has neither reuse nor contents
  check_reuse(team, graph, out);
  check_order_of_sums(team, graph, out);
  if (options.coverage) check_coverage(team, graph, out);
}

}  // namespace

bool CheckReport::ok() const {
  return std::none_of(findings.begin(), findings.end(), [](const Finding& f) { return f.is_error; });
}

std::string CheckReport::to_string() const {
  std::string out;
  for (const Finding& f : findings) {
    out += base::format("{} {}: {}, rank {}: {}\n", f.code, f.is_error ? "error" : "warning", f.task, f.rank, f.text);
  }
  return out;
}

CheckReport check(const Schedule& schedule, const Machine& machine, const CheckOptions& options) {
  CheckReport report;
  Findings findings(&report.findings);
  check_names(schedule, &findings);
  std::vector<int> sizes = options.ranks;
  if (sizes.empty()) {
    const auto it = schedule.params.find("G");
    if (it != schedule.params.end() && std::holds_alternative<int64_t>(it->second)) {
      sizes = {static_cast<int>(std::clamp<int64_t>(std::get<int64_t>(it->second), 0, 1 << 20))};
    } else {
      sizes = {2, 3, 4, 8};
    }
  }
  for (int ranks : sizes) {
    if (findings.num_errors() == 0) check_team(schedule, ranks, machine, options, &findings);
  }
  return report;
}

}  // namespace overlace::spec
