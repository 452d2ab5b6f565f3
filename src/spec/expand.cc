#include "src/spec/expand.h"

#include <algorithm>
#include <map>
#include <queue>
#include <tuple>
#include <utility>

#include "src/spec/alike.h"
#include "src/spec/expander.h"

namespace overlace::spec {
namespace {

/// Who depends on an instance, and who is behind it on its lane.
struct Successors {
  explicit Successors(const std::vector<Instance>& list) : first(list.size() + 1, 0), behind(list.size(), -1) {
    for (const Instance& in : list)
      for (const int dep : in.deps) ++first[static_cast<size_t>(dep) + 1];
    for (size_t i = 1; i < first.size(); ++i) first[i] += first[i - 1];
    dependents.resize(static_cast<size_t>(first.back()));
    std::vector<int> at(first.begin(), first.end() - 1);
    for (size_t i = 0; i < list.size(); ++i)
      for (const int dep : list[i].deps)
        dependents[static_cast<size_t>(at[static_cast<size_t>(dep)]++)] = static_cast<int>(i);
  }
  std::vector<int> first, dependents;  // those of i: dependents[first[i]] up to first[i + 1]
  std::vector<int> behind;             // -1: none
};

/// Positions (in mine, in theirs) of the loop variables that both tasks have.
std::vector<std::pair<size_t, size_t>> common_loops(const Task& mine, const Task& theirs) {
  std::vector<std::pair<size_t, size_t>> out;
  for (size_t i = 0; i < mine.loops.size(); ++i) {
    for (size_t j = 0; j < theirs.loops.size(); ++j) {
      if (mine.loops[i].var == theirs.loops[j].var) out.emplace_back(i, j);
    }
  }
  return out;
}

base::Status resolve_deps(const Schedule& schedule, const std::vector<std::pair<int, int>>& ranges, Expansion* out) {
  int64_t num_deps = 0;
  for (size_t t = 0; t < schedule.tasks.size(); ++t) {
    const Task& task = schedule.tasks[t];
    for (const std::string& name : task.deps) {
      const auto dep = std::find_if(schedule.tasks.begin(), schedule.tasks.end(),
                                    [&](const Task& other) { return other.id == name; });
      if (dep == schedule.tasks.end() || name == task.id) {
        return base::error(Errc::bad_schedule, "S1: task {}: depends on '{}', wanted another task's id", task.id, name);
      }
      const auto common = common_loops(task, *dep);
      const auto [first, last] = ranges[static_cast<size_t>(dep - schedule.tasks.begin())];
      std::map<std::vector<int64_t>, std::vector<int>> theirs;  // by the values of the common variables
      std::vector<int64_t> values(common.size());
      for (int j = first; j < last; ++j) {
        const Instance& in = out->instances[static_cast<size_t>(j)];
        for (size_t c = 0; c < common.size(); ++c) values[c] = in.loop_values[common[c].second];
        theirs[values].push_back(j);
      }
      for (int i = ranges[t].first; i < ranges[t].second; ++i) {
        Instance& in = out->instances[static_cast<size_t>(i)];
        for (size_t c = 0; c < common.size(); ++c) values[c] = in.loop_values[common[c].first];
        const auto match = theirs.find(values);
        if (match == theirs.end()) continue;
        in.deps.insert(in.deps.end(), match->second.begin(), match->second.end());
        num_deps += static_cast<int64_t>(match->second.size());
        if (num_deps > kMaxItems) {
          return base::error(Errc::bad_schedule, "S1: task {}: more than {} dependencies", task.id, kMaxItems);
        }
      }
    }
  }
  out->num_items += num_deps;
  return {};
}

/// What a hardware queue would stop at: a wait that other ranks fulfil in this epoch.
bool waits_for_peers(const Instance& in) {
  return std::any_of(in.waits.begin(), in.waits.end(), [](const ResolvedWait& w) { return !w.previous; });
}

/// Sorts instances so that deps and lane predecessors come first and those that wait for peers as late as possible:
/// what the peers need is issued before anything that could block.
base::Status sort_for_issue(const Schedule& schedule, Expansion* out) {
  std::vector<Instance>& list = out->instances;
  const size_t n = list.size();
  Successors next(list);
  std::vector<int> missing(n, 0), ordinal(n, 0);
  std::map<Lane, std::vector<int>> lanes;
  for (size_t i = 0; i < n; ++i) {
    lanes[list[i].lane].push_back(static_cast<int>(i));
    missing[i] = static_cast<int>(list[i].deps.size());
  }
  for (auto& [lane, members] : lanes) {
    const auto is_before = [&](int a, int b) {
      const Instance &x = list[static_cast<size_t>(a)], &y = list[static_cast<size_t>(b)];
      return std::tie(x.order, x.loop_values, x.task) < std::tie(y.order, y.loop_values, y.task);
    };
    if (!std::is_sorted(members.begin(), members.end(), is_before))
      std::stable_sort(members.begin(), members.end(), is_before);
    for (size_t k = 0; k < members.size(); ++k) {
      ordinal[static_cast<size_t>(members[k])] = static_cast<int>(k);
      if (k == 0) continue;
      next.behind[static_cast<size_t>(members[k - 1])] = members[k];
      ++missing[static_cast<size_t>(members[k])];
    }
  }
  using Key = std::tuple<bool, int, bool, int>;  // waits, place in its lane, not a copy engine, index
  std::priority_queue<Key, std::vector<Key>, std::greater<>> ready;
  auto push = [&](int i) {
    const Instance& in = list[static_cast<size_t>(i)];
    ready.emplace(waits_for_peers(in), ordinal[static_cast<size_t>(i)], in.lane.engine != Engine::ce, i);
  };
  for (size_t i = 0; i < n; ++i) {
    if (missing[i] == 0) push(static_cast<int>(i));
  }
  std::vector<int> issue, place(n, -1);
  while (!ready.empty()) {
    const int i = std::get<3>(ready.top());
    ready.pop();
    place[static_cast<size_t>(i)] = static_cast<int>(issue.size());
    issue.push_back(i);
    const auto done = [&](int j) {
      if (--missing[static_cast<size_t>(j)] == 0) push(j);
    };
    const auto [begin, end] = std::tie(next.first[static_cast<size_t>(i)], next.first[static_cast<size_t>(i) + 1]);
    for (int d = begin; d < end; ++d) done(next.dependents[static_cast<size_t>(d)]);
    if (const int j = next.behind[static_cast<size_t>(i)]; j >= 0) done(j);
  }
  if (issue.size() != n) {
    const auto stuck = std::find(place.begin(), place.end(), -1) - place.begin();
    return base::error(Errc::bad_schedule, "S7: rank {}: {} waits for itself through dependencies and its lane",
                       out->rank, list[static_cast<size_t>(stuck)].id(schedule));
  }
  std::vector<Instance> sorted;
  sorted.reserve(n);
  for (int i : issue) {
    sorted.push_back(std::move(list[static_cast<size_t>(i)]));
    for (int& dep : sorted.back().deps) dep = place[static_cast<size_t>(dep)];
  }
  list = std::move(sorted);
  return {};
}

}  // namespace

bool Box::empty() const { return ndim == 0 || std::find(count, count + ndim, 0) != count + ndim; }

int64_t bytes_of(const Schedule& schedule, const std::vector<Box>& boxes) {
  int64_t bytes = 0;
  for (const Box& box : boxes)
    bytes += box.numel() * static_cast<int64_t>(dtype_bytes(schedule.buffers[static_cast<size_t>(box.buffer)].dtype));
  return bytes;
}

int64_t bytes_written(const Schedule& schedule, const Instance& instance) {
  int64_t bytes = 0;
  for (const std::vector<Box>& boxes : instance.writes) bytes += bytes_of(schedule, boxes);
  return bytes;
}

std::vector<uint32_t> first_words(const Expansion& expansion) {
  std::vector<uint32_t> first = {0};
  for (const int64_t slots : expansion.signal_slots) first.push_back(first.back() + static_cast<uint32_t>(slots));
  return first;
}

std::vector<uint32_t> first_words(const Schedule& schedule, const Expansion& expansion, Scope scope) {
  std::vector<uint32_t> first = {0};
  for (size_t i = 0; i < schedule.signals.size(); ++i)
    first.push_back(first.back() +
                    (schedule.signals[i].scope == scope ? static_cast<uint32_t>(expansion.signal_slots[i]) : 0));
  return first;
}

int64_t Box::numel() const {
  int64_t n = ndim > 0 ? 1 : 0;
  for (int d = 0; d < ndim; ++d) n *= count[d];
  return n;
}

int64_t Expansion::adds(int signal, int64_t slot, int from) const {
  return adds_table[static_cast<size_t>(signal)][static_cast<size_t>(slot * ranks + from)];
}

namespace {

/// Everything but what the ranks add to this one's words.
base::Result<Expansion> expand_without_adds(const Schedule& schedule, int rank, int ranks, Expander* expander) {
  if (ranks < 1) return base::error(Errc::bad_schedule, "S1: expanded for {} ranks, wanted >= 1", ranks);
  Expansion out;
  out.rank = rank;
  out.ranks = ranks;
  expander->move_to(rank);
  OVERLACE_TRY(expander->expand(&out));
  OVERLACE_TRY(resolve_deps(schedule, expander->task_ranges(), &out));
  OVERLACE_TRY(sort_for_issue(schedule, &out));
  out.num_items += expander->num_items() + static_cast<int64_t>(out.instances.size());
  int64_t num_words = 0;
  for (int64_t slots : out.signal_slots) {
    num_words += slots * ranks;
    if (num_words > kMaxItems) {
      return base::error(Errc::bad_schedule, "S1: signals of {} words and more, wanted at most {}", num_words,
                         kMaxItems);
    }
    out.adds_table.emplace_back(static_cast<size_t>(slots * ranks), 0);
  }
  out.num_items += num_words;
  return out;
}

}  // namespace

base::Result<Expansion> expand(const Schedule& schedule, int rank, int ranks) {
  Expander expander(schedule, rank, ranks);
  base::Result<Expansion> out = expand_without_adds(schedule, rank, ranks, &expander);
  if (!out.ok()) return out;
  for (int peer = 0; peer < ranks; ++peer) {
    expander.move_to(peer);
    OVERLACE_TRY(expander.add_sets(&*out, rank));
  }
  return out;
}

namespace {

/// `stops_if_alike`: with the first rank, if it stands for all.
base::Result<std::vector<Expansion>> expand_ranks(const Schedule& schedule, int ranks, bool stops_if_alike) {
  constexpr int64_t kMaxItemsOfAll = 8'000'000;  // some gigabytes
  std::vector<Expansion> out;
  int64_t num_items = 0;
  Expander expander(schedule, 0, ranks);
  for (int rank = 0; rank < std::max(ranks, 1); ++rank) {
    base::Result<Expansion> one = expand_without_adds(schedule, rank, ranks, &expander);
    if (!one.ok()) return one.status();
    out.push_back(std::move(one).value());
    num_items += out.back().num_items;
    if (num_items > kMaxItemsOfAll) {
      return base::error(Errc::bad_schedule,
                         "S1: {} ranks need more than {} instances, regions, waits, sets, "
                         "dependencies and words of signals",
                         ranks, kMaxItemsOfAll);
    }
    if (rank == 0 && stops_if_alike && expander.are_ranks_alike()) return out;
  }
  for (const Expansion& from : out) {
    for (const Instance& in : from.instances) {
      for (const ResolvedSet& set : in.sets) {
        Expansion& to = out[static_cast<size_t>(set.at)];
        const auto signal = static_cast<size_t>(set.signal);
        if (set.slot >= to.signal_slots[signal]) {
          return base::error(Errc::bad_schedule, "S2: {}, rank {} of {}: slot {} of {} at rank {}, which has {}",
                             in.id(schedule), from.rank, ranks, set.slot, schedule.signals[signal].name, set.at,
                             to.signal_slots[signal]);
        }
        to.adds_table[signal][static_cast<size_t>(set.slot * ranks + from.rank)] += set.add;
      }
    }
  }
  return out;
}

}  // namespace

base::Result<std::vector<Expansion>> expand_all(const Schedule& schedule, int ranks) {
  return expand_ranks(schedule, ranks, /*stops_if_alike=*/false);
}

base::Result<std::vector<Expansion>> expand_alike(const Schedule& schedule, int ranks) {
  return expand_ranks(schedule, ranks, /*stops_if_alike=*/true);
}

}  // namespace overlace::spec
