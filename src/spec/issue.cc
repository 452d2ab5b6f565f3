#include "src/spec/issue.h"

#include <algorithm>
#include <deque>
#include <map>
#include <tuple>

#include "src/spec/names.h"
#include "src/spec/operators.h"

namespace overlace::spec {
namespace {

/// All ranks, one step after the other. NOTE: everything here follows from schedule and groups alone, so that all ranks
/// find the same rounds.
class Walk {
 public:
  Walk(const Schedule& schedule, const std::vector<Expansion>& all, std::span<const int> group, int rank)
      : schedule_(schedule), all_(all), group_(group), rank_(rank), ranks_(all.size()) {
    for (size_t r = 0; r < all.size(); ++r) {
      ranks_[r].lanes = lanes_of(all[r]);
      ranks_[r].next.resize(ranks_[r].lanes.size());
      ranks_[r].is_done.resize(all[r].instances.size());
      ranks_[r].unsent.resize(all[r].instances.size());
      left_ += all[r].instances.size();
    }
    out_.last_round.assign(all[static_cast<size_t>(rank)].instances.size(), -1);
  }

  base::Result<Timetable> run() {
    OVERLACE_TRY(check());
    // Transfers first, and messages as soon as there are some: what peers wait for leaves before anything that waits.
    while (left_ > 0 || !waiting_.empty()) {
      if (issue(/*sm=*/false) || depart() || issue(/*sm=*/true)) continue;
      return base::error(Errc::bad_schedule, "schedule {}: every lane of every rank waits for another one",
                         schedule_.family);
    }
    return std::move(out_);
  }

 private:
  struct Rank {
    std::vector<LaneQueue> lanes;
    std::vector<size_t> next;                               // per lane
    std::vector<char> is_done;                              // per instance: those that depend on it may start
    std::vector<int> unsent;                                // per instance: messages with data that have not left
    std::map<std::tuple<int, int64_t, int>, int64_t> seen;  // adds to (signal, slot, from) in this call
  };

  bool is_far(size_t from, int to) const { return group_[from] != group_[static_cast<size_t>(to)]; }
  const Instance& instance(size_t rank, int index) const { return all_[rank].instances[static_cast<size_t>(index)]; }

  /// Rows: leading dimensions of one element do not count.
  static bool is_flat(const Box& box) {
    return std::all_of(box.count, box.count + std::max(box.ndim - 2, 0), [](int64_t count) { return count == 1; });
  }

  base::Status check() const {
    for (size_t r = 0; r < all_.size(); ++r)
      for (const Instance& i : all_[r].instances) OVERLACE_TRY(check(r, i));
    return {};
  }

  base::Status check(size_t r, const Instance& i) const {
    const Task& task = schedule_.tasks[static_cast<size_t>(i.task)];
    const auto refuse = [&](const char* what, int peer) {
      return base::error(Errc::not_supported,
                         "{} of rank {} {} rank {}, which loads and stores do not reach; wanted: copies and signals",
                         i.id(schedule_), r, what, peer);
    };
    const bool is_copy = task.kind == Kind::copy && !is_part(task) && i.reads.size() == 1 && i.writes.size() == 1 &&
                         i.reads[0].size() == i.writes[0].size();
    for (const auto& boxes : i.reads)
      for (const Box& box : boxes)
        if (is_far(r, box.rank)) return refuse("reads from", box.rank);
    for (const auto& boxes : i.writes)
      for (const Box& box : boxes)
        if (is_far(r, box.rank) && !is_copy) return refuse("stores to", box.rank);
    for (size_t part = 0; is_copy && part < i.writes[0].size(); ++part) {
      const Box &from = i.reads[0][part], &to = i.writes[0][part];
      if (is_far(r, to.rank) && !(is_flat(from) && is_flat(to)))
        return base::error(Errc::not_supported,
                           "{} of rank {} copies a box of {} dimensions to rank {} of another host; wanted: 1 or 2",
                           i.id(schedule_), r, std::max(from.ndim, to.ndim), to.rank);
    }
    if (!is_part(task)) return {};
    for (const ResolvedSet& set : i.sets)
      if (is_far(r, set.at)) return refuse("signals in a kernel to", set.at);
    for (const ResolvedWait& wait : i.waits)
      if (is_far(r, wait.from)) return refuse("waits in a kernel for", wait.from);
    return {};
  }

  bool is_ready(size_t r, const Instance& i) const {
    const Rank& rank = ranks_[r];
    const auto holds = [&](const ResolvedWait& wait) {
      if (wait.previous) return true;  // awaited before the call's first step
      const auto found = rank.seen.find({wait.signal, wait.slot, wait.from});
      return (found == rank.seen.end() ? 0 : found->second) >= wait.at_least;
    };
    return std::all_of(i.deps.begin(), i.deps.end(),
                       [&](int d) { return rank.is_done[static_cast<size_t>(d)] != 0; }) &&
           std::all_of(i.waits.begin(), i.waits.end(), holds);
  }

  /// sm: at most one instance per rank, so that equal ranks go in step; else all transfers that can be issued now.
  bool issue(bool sm) {
    bool has_moved = false;
    for (size_t r = 0; r < all_.size(); ++r) {
      Rank& rank = ranks_[r];
      for (size_t lane = 0; lane < rank.lanes.size(); ++lane) {
        const std::vector<int>& queue = rank.lanes[lane].instances;
        if ((rank.lanes[lane].lane.engine == Engine::sm) != sm) continue;
        bool has_issued = false;
        while (rank.next[lane] < queue.size() && is_ready(r, instance(r, queue[rank.next[lane]]))) {
          issue(r, queue[rank.next[lane]++]);
          has_moved = has_issued = true;
          if (sm) break;
        }
        if (sm && has_issued) break;
      }
    }
    return has_moved;
  }

  void issue(size_t r, int index) {
    const Instance& i = instance(r, index);
    const auto at = static_cast<size_t>(index);
    if (static_cast<int>(r) == rank_) out_.steps.push_back({.instance = index});
    --left_;
    std::map<int, Message> messages;
    const auto message_to = [&](int to) -> Message& {
      Message& message = messages[to];
      message.from = static_cast<int>(r);
      message.to = to;
      message.instance = index;
      return message;
    };
    for (size_t b = 0; b < (i.writes.empty() ? 0 : i.writes[0].size()); ++b) {
      const Box& to = i.writes[0][b];
      if (is_far(r, to.rank) && !to.empty()) message_to(to.rank).parts.emplace_back(i.reads[0][b], to);
    }
    for (const ResolvedSet& set : i.sets) {
      if (is_far(r, set.at)) {
        message_to(set.at).sets.push_back(set);
      } else {
        ranks_[static_cast<size_t>(set.at)].seen[{set.signal, set.slot, static_cast<int>(r)}] += set.add;
      }
    }
    for (const auto& [to, message] : messages) ranks_[r].unsent[at] += message.parts.empty() ? 0 : 1;
    ranks_[r].is_done[at] = ranks_[r].unsent[at] == 0 ? 1 : 0;
    for (auto& [to, message] : messages) waiting_[{static_cast<int>(r), to}].push_back(std::move(message));
  }

  /// Lets the first message with data of each pair depart, and signals before it.
  bool depart() {
    if (waiting_.empty()) return false;
    Round round;
    for (auto it = waiting_.begin(); it != waiting_.end();) {
      for (bool has_data = false; !it->second.empty() && !has_data; it->second.pop_front()) {
        has_data = !it->second.front().parts.empty();
        deliver(it->second.front());
        round.push_back(std::move(it->second.front()));
      }
      it = it->second.empty() ? waiting_.erase(it) : std::next(it);
    }
    const bool is_mine =
        std::any_of(round.begin(), round.end(), [&](const Message& m) { return m.from == rank_ || m.to == rank_; });
    if (!is_mine) return true;
    const int index = static_cast<int>(out_.rounds.size());
    for (const Message& m : round) {
      if (m.parts.empty() || (m.from != rank_ && m.to != rank_)) continue;
      out_.last_data = index;
      if (m.from == rank_) out_.last_round[static_cast<size_t>(m.instance)] = index;
    }
    out_.steps.push_back({.round = index});
    out_.rounds.push_back(std::move(round));
    return true;
  }

  void deliver(const Message& m) {
    Rank& sender = ranks_[static_cast<size_t>(m.from)];
    const auto at = static_cast<size_t>(m.instance);
    if (!m.parts.empty() && --sender.unsent[at] == 0) sender.is_done[at] = 1;
    for (const ResolvedSet& set : m.sets)
      ranks_[static_cast<size_t>(m.to)].seen[{set.signal, set.slot, m.from}] += set.add;
  }

  const Schedule& schedule_;
  const std::vector<Expansion>& all_;
  std::span<const int> group_;
  const int rank_;
  std::vector<Rank> ranks_;
  std::map<std::pair<int, int>, std::deque<Message>> waiting_;  // (from, to)
  size_t left_ = 0;                                             // instances
  Timetable out_;
};

}  // namespace

std::vector<LaneQueue> lanes_of(const Expansion& expansion) {
  std::map<std::pair<bool, Lane>, std::vector<int>> lanes;  // by whether it is an sm lane
  const std::vector<Instance>& instances = expansion.instances;
  for (size_t i = 0; i < instances.size(); ++i) {
    const Lane& lane = instances[i].lane;
    lanes[{lane.engine == Engine::sm, lane}].push_back(static_cast<int>(i));
  }
  std::vector<LaneQueue> out;
  for (auto& [key, queue] : lanes) out.push_back({key.second, std::move(queue)});
  return out;
}

namespace {

/// Per instance: those of its own rank that set what it waits for. They are issued first, as a queue that a wait stops
/// may be theirs, too.
std::vector<std::vector<int>> own_setters(const Expansion& expansion) {
  std::map<std::pair<int, int64_t>, std::vector<int>> by_word;
  std::vector<std::vector<int>> out(expansion.instances.size());
  for (size_t i = 0; i < out.size(); ++i)
    for (const ResolvedSet& set : expansion.instances[i].sets)
      if (set.at == expansion.rank) by_word[{set.signal, set.slot}].push_back(static_cast<int>(i));
  for (size_t i = 0; i < out.size() && !by_word.empty(); ++i) {
    for (const ResolvedWait& wait : expansion.instances[i].waits) {
      const auto found = by_word.find({wait.signal, wait.slot});
      if (wait.from != expansion.rank || wait.previous || found == by_word.end()) continue;
      out[i].insert(out[i].end(), found->second.begin(), found->second.end());
    }
  }
  return out;
}

}  // namespace

std::vector<Step> issue_order(const Expansion& expansion, std::span<const LaneQueue> lanes) {
  std::vector<Step> order;
  std::vector<size_t> next(lanes.size(), 0);
  std::vector<bool> issued(expansion.instances.size(), false);
  const std::vector<std::vector<int>> setters = own_setters(expansion);
  const auto is_issued = [&](int index) { return issued[static_cast<size_t>(index)]; };
  const auto is_ready = [&](int index, bool may_wait) {
    const auto i = static_cast<size_t>(index);
    const std::vector<int>& deps = expansion.instances[i].deps;
    return std::all_of(deps.begin(), deps.end(), is_issued) &&
           (may_wait || std::all_of(setters[i].begin(), setters[i].end(), is_issued));
  };
  const auto issue_one = [&](bool may_wait) {
    for (size_t lane = 0; lane < lanes.size(); ++lane) {
      const std::vector<int>& queue = lanes[lane].instances;
      if (next[lane] == queue.size() || !is_ready(queue[next[lane]], may_wait)) continue;
      order.push_back({.instance = queue[next[lane]++]});
      issued[static_cast<size_t>(order.back().instance)] = true;
      return true;
    }
    return false;
  };
  while (order.size() < issued.size()) {
    const bool moved = issue_one(/*may_wait=*/false) || issue_one(/*may_wait=*/true);
    OVERLACE_ASSERT(moved);  // expand() gives a topological order, so one exists
  }
  return order;
}

base::Result<Timetable> make_timetable(const Schedule& schedule, const std::vector<Expansion>& all,
                                       std::span<const int> group, int rank) {
  return Walk(schedule, all, group, rank).run();
}

bool needs_timetable(const Schedule& schedule, const Expansion& expansion, std::span<const int> group) {
  const auto waits = [&](const Instance& i) {
    if (i.lane.engine == Engine::sm || is_part(schedule.tasks[static_cast<size_t>(i.task)])) return false;
    return std::any_of(i.waits.begin(), i.waits.end(),
                       [&](const ResolvedWait& wait) { return !wait.previous && wait.from != expansion.rank; });
  };
  return std::any_of(group.begin(), group.end(), [&](int one) { return one != group.front(); }) ||
         std::any_of(expansion.instances.begin(), expansion.instances.end(), waits);
}

std::string lane_name(const Lane& lane) { return base::format("{} {}", name_of(lane.engine), lane.queue); }

std::string word_name(const Schedule& schedule, int signal, int64_t slot) {
  return base::format("{}[{}]", schedule.signals[static_cast<size_t>(signal)].name, slot);
}

std::string round_text(const Schedule& schedule, int rank, const Round& round) {
  std::string received, sent;
  for (const Message& m : round) {
    const bool is_in = m.to == rank;
    if (!is_in && m.from != rank) continue;
    std::string& text = is_in ? received : sent;
    if (!text.empty()) text += ", ";
    for (size_t i = 0; i < m.sets.size(); ++i)
      text += (i == 0 ? "" : " and ") + word_name(schedule, m.sets[i].signal, m.sets[i].slot);
    if (m.sets.empty()) text += "data";
    text += base::format(" {} rank {}", is_in ? "of" : "to", is_in ? m.from : m.to);
  }
  return received.empty() ? sent : received;
}

}  // namespace overlace::spec
