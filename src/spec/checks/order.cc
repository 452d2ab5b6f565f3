// Checks that rest on who happens before whom: S4 to S8 and S10.
#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "src/base/format.h"
#include "src/spec/checks/graph.h"
#include "src/spec/operators.h"

namespace overlace::spec {
namespace {

struct Access {
  std::pair<int, int> who;  // rank, instance
  Box box;
  bool is_write, is_add;
};
/// Per buffer and owner, by first row.
using Accesses = std::map<std::pair<int, int>, std::vector<Access>>;

Accesses accesses_of(const AllRanks& team) {
  Accesses out;
  for (int rank = 0; rank < team.size(); ++rank) {
    const auto& instances = team.ranks[static_cast<size_t>(rank)].instances;
    for (size_t i = 0; i < instances.size(); ++i) {
      const bool is_add = team.schedule->tasks[static_cast<size_t>(instances[i].task)].combine == Combine::add;
      auto add = [&](const std::vector<std::vector<Box>>& lists, bool is_write) {
        for (const auto& list : lists) {
          for (const Box& box : list) {
            if (box.empty()) continue;
            out[{box.buffer, box.rank}].push_back({{rank, static_cast<int>(i)}, box, is_write, is_write && is_add});
          }
        }
      };
      add(instances[i].reads, false);
      add(instances[i].writes, true);
    }
  }
  for (auto& [key, list] : out) {
    std::stable_sort(list.begin(), list.end(),
                     [](const Access& a, const Access& b) { return a.box.begin[0] < b.box.begin[0]; });
  }
  return out;
}

/// Visits each pair of overlapping accesses of which one writes, once.
template <class Visit>
void for_conflicts(const std::vector<Access>& list, Visit visit) {
  for (size_t i = 0; i < list.size(); ++i) {
    const int64_t end = list[i].box.begin[0] + list[i].box.count[0];
    for (size_t j = i + 1; j < list.size() && list[j].box.begin[0] < end; ++j) {
      if ((list[i].is_write || list[j].is_write) && overlap(list[i].box, list[j].box)) visit(list[i], list[j]);
    }
  }
}

std::string what(const AllRanks& team, const Access& access) {
  return base::format("{} of rank {} {} {}", team.id(access.who.first, access.who.second), access.who.first,
                      access.is_write ? "writes" : "reads", box_text(*team.schedule, access.box));
}

}  // namespace

/// Counters of a rank are its own, begin at 0 in each call, and are set by its kernel's parts: a part that waited for
/// one that something else sets would hold the SMs that it may need.
void check_scopes(const AllRanks& team, Findings* out) {
  const Schedule& schedule = *team.schedule;
  const auto is_counter = [&](int signal) {
    return schedule.signals[static_cast<size_t>(signal)].scope == Scope::device;
  };
  for (int rank = 0; rank < team.size(); ++rank) {
    std::set<std::pair<int, int64_t>> others;  // counters that no part of a kernel sets
    const auto& instances = team.ranks[static_cast<size_t>(rank)].instances;
    for (const Instance& in : instances) {
      for (const ResolvedSet& set : in.sets) {
        if (!is_counter(set.signal)) continue;
        if (!is_part(schedule.tasks[static_cast<size_t>(in.task)])) others.insert({set.signal, set.slot});
        if (set.at == rank) continue;
        out->error("S4", in.id(schedule), rank,
                   base::format("adds to {}[{}], a counter of scope device, at rank {}; wanted: its own rank",
                                schedule.signals[static_cast<size_t>(set.signal)].name, set.slot, set.at));
      }
    }
    for (const Instance& in : instances) {
      for (const ResolvedWait& wait : in.waits) {
        if (!is_counter(wait.signal)) continue;
        const std::string& name = schedule.signals[static_cast<size_t>(wait.signal)].name;
        if (wait.from != rank || wait.previous)
          out->error("S4", in.id(schedule), rank,
                     base::format("waits for adds by rank {}{} to {}[{}], a counter of scope device; wanted: its own "
                                  "rank, this call",
                                  wait.from, wait.previous ? " of earlier calls" : "", name, wait.slot));
        if (is_part(schedule.tasks[static_cast<size_t>(in.task)]) && others.contains({wait.signal, wait.slot}))
          out->error("S7", in.id(schedule), rank,
                     base::format("is a part of a kernel and waits for {}[{}], a counter of scope device that a task "
                                  "outside the kernel sets; wanted: counters that the kernel itself sets",
                                  name, wait.slot));
      }
    }
  }
}

void check_counts(const AllRanks& team, Findings* out) {
  const Schedule& schedule = *team.schedule;
  std::set<std::tuple<int, int, int64_t, int>> waited;
  for (int rank = 0; rank < team.size(); ++rank) {
    const Expansion& mine = team.ranks[static_cast<size_t>(rank)];
    for (const Instance& in : mine.instances) {
      for (const ResolvedWait& wait : in.waits) {
        waited.insert({rank, wait.signal, wait.slot, wait.from});
        const int64_t adds = mine.adds(wait.signal, wait.slot, wait.from);
        if (adds >= wait.at_least && adds > 0) continue;
        out->error("S4", in.id(schedule), rank,
                   base::format("waits for {} adds by rank {} to {}[{}], which gets {} per epoch", wait.at_least,
                                wait.from, schedule.signals[static_cast<size_t>(wait.signal)].name, wait.slot, adds));
      }
    }
  }
  for (int rank = 0; rank < team.size(); ++rank) {
    for (const Instance& in : team.ranks[static_cast<size_t>(rank)].instances) {
      for (const ResolvedSet& set : in.sets) {
        if (waited.count({set.at, set.signal, set.slot, rank}) > 0) continue;
        out->warn("S4", in.id(schedule), rank,
                  base::format("adds to {}[{}] at rank {}, for which nobody waits",
                               schedule.signals[static_cast<size_t>(set.signal)].name, set.slot, set.at));
      }
    }
  }
}

int64_t num_pairs(const AllRanks& team) {
  int64_t out = 0;
  for (const auto& entry : accesses_of(team)) {
    const auto& list = entry.second;
    for (size_t i = 0; i < list.size(); ++i) {
      const int64_t end = list[i].box.begin[0] + list[i].box.count[0];
      const auto behind = std::partition_point(list.begin() + static_cast<std::ptrdiff_t>(i), list.end(),
                                               [&](const Access& a) { return a.box.begin[0] < end; });
      out += behind - list.begin() - static_cast<std::ptrdiff_t>(i);
    }
  }
  return out;
}

void check_races(const AllRanks& team, const Graph& graph, Findings* out) {
  for (const auto& [key, list] : accesses_of(team)) {
    for_conflicts(list, [&](const Access& a, const Access& b) {
      if (a.who == b.who && !(a.is_write && b.is_write)) return;  // in place
      if (a.is_add && b.is_add) return;                           // S10's
      if (graph.before(a.who, b.who, 0) || graph.before(b.who, a.who, 0)) return;
      out->error("S5", team.id(a.who.first, a.who.second), a.who.first,
                 what(team, a) + " and, unordered, " + what(team, b));
    });
  }
}

void check_reuse(const AllRanks& team, const Graph& graph, Findings* out) {
  for (const auto& [key, list] : accesses_of(team)) {
    const Buffer& buffer = team.schedule->buffers[static_cast<size_t>(key.first)];
    if (buffer.space != Space::symmetric) continue;  // one rank's own: epochs of a rank follow each other
    auto reused = [&](const Access& early, const Access& late) {
      if (graph.before(early.who, late.who, buffer.depth)) return;
      out->error(
          "S6", team.id(late.who.first, late.who.second), late.who.first,
          base::format("{} {} epochs later, perhaps before {}", what(team, late), buffer.depth, what(team, early)));
    };
    for_conflicts(list, [&](const Access& a, const Access& b) {
      reused(a, b);
      reused(b, a);
    });
    for (const Access& a : list) {
      if (a.is_write) reused(a, a);
    }
  }
}

void check_order_of_sums(const AllRanks& team, const Graph& graph, Findings* out) {
  if (!team.schedule->deterministic) return;
  for (const auto& entry : accesses_of(team)) {
    const auto& list = entry.second;
    for_conflicts(list, [&](const Access& a, const Access& b) {
      if (!a.is_add || !b.is_add) return;
      if (graph.before(a.who, b.who, 0) || graph.before(b.who, a.who, 0)) return;
      const auto terms = std::count_if(list.begin(), list.end(), [&](const Access& c) {
        return c.is_write && overlap(c.box, a.box) && overlap(c.box, b.box);
      });
      if (terms <= 2) return;  // two terms commute
      out->error("S10", team.id(a.who.first, a.who.second), a.who.first,
                 base::format("{} and, unordered, {}: a sum of {} terms without an order", what(team, a), what(team, b),
                              terms));
    });
  }
}

void check_residency(const AllRanks& team, const Machine& machine, const Graph& graph, Findings* out) {
  auto sms_of = [&](const Task& task) {
    const auto it = task.params.find("sms");
    const int64_t* sms = it == task.params.end() ? nullptr : std::get_if<int64_t>(&it->second);
    return sms == nullptr ? int64_t{machine.sms} : *sms;
  };
  for (int rank = 0; rank < team.size(); ++rank) {
    const auto& instances = team.ranks[static_cast<size_t>(rank)].instances;
    /// Ordered before i by its lane or its deps, not by the waits on which it spins.
    auto is_done_at_launch = [&](size_t j, size_t i) {
      std::vector<int> priors = instances[i].deps;
      for (size_t k = 0; k < i; ++k) {
        if (instances[k].lane == instances[i].lane) priors.push_back(static_cast<int>(k));
      }
      return std::any_of(priors.begin(), priors.end(), [&](int p) {
        return p == static_cast<int>(j) || graph.before({rank, static_cast<int>(j)}, {rank, p}, 0);
      });
    };
    for (size_t i = 0; i < instances.size(); ++i) {
      const Task& spins = team.schedule->tasks[static_cast<size_t>(instances[i].task)];
      if (spins.wait_by != WaitBy::kernel || spins.engine != Engine::sm || instances[i].waits.empty()) continue;
      for (size_t j = 0; j < instances.size(); ++j) {
        const Task& needed = team.schedule->tasks[static_cast<size_t>(instances[j].task)];
        if (needed.engine != Engine::sm || instances[i].lane == instances[j].lane || i == j) continue;
        if (!graph.before({rank, static_cast<int>(j)}, {rank, static_cast<int>(i)}, 0)) continue;
        if (is_done_at_launch(j, i)) continue;
        const int64_t want = sms_of(spins) + sms_of(needed);
        if (want <= machine.sms) continue;
        out->error("S7", instances[i].id(*team.schedule), rank,
                   base::format("spins on {} SMs while it waits for {}, which needs {}; the machine has {}",
                                sms_of(spins), instances[j].id(*team.schedule), sms_of(needed), machine.sms));
      }
    }
  }
}

void check_queues(const AllRanks& team, const Machine& machine, Findings* out) {
  if (!machine.is_gpu) return;  // CPU lanes have threads of their own
  AllRanks queues = team;
  for (int rank = 0; rank < team.size(); ++rank) {
    std::map<Lane, int> lanes;  // in order of first use, as streams get their hardware queues
    for (Instance& in : queues.ranks[static_cast<size_t>(rank)].instances) {
      const Task& task = team.schedule->tasks[static_cast<size_t>(in.task)];
      if (machine.max_connections == 1 && !in.waits.empty() && task.wait_by == WaitBy::queue) {
        out->error("S8", in.id(*team.schedule), rank,
                   "waits in its queue, but CUDA_DEVICE_MAX_CONNECTIONS is 1: the wait would stop all queues");
      }
      const int lane = lanes.try_emplace(in.lane, static_cast<int>(lanes.size())).first->second;
      in.lane = {Engine::sm, lane % std::max(1, machine.max_connections)};
    }
  }
  if (machine.max_connections == 1) return;
  const auto circle = Graph(queues, 1, Graph::progress).circle();
  if (circle.empty()) return;
  out->error("S8", team.id(circle[0].first, circle[0].second), circle[0].first,
             base::format("waits in one of {} hardware queues before what it needs: {}", machine.max_connections,
                          names_of(team, circle)));
}

}  // namespace overlace::spec
