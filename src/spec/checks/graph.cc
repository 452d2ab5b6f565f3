#include "src/spec/checks/graph.h"

#include <algorithm>
#include <array>
#include <utility>

#include "src/base/ceil_div_pod.h"
#include "src/base/format.h"
#include "src/base/status.h"
#include "src/spec/operators.h"

namespace overlace::spec {

base::Status AllRanks::list_items() {
  for (const Expansion& rank : ranks) {
    const base::Result<std::vector<Item>> items = spec::items_of(*schedule, rank, {});
    if (!items.ok()) return items.status();
    auto& spans = drawn.emplace_back(rank.instances.size());
    for (size_t n = 0; n < items->size(); ++n) {
      const auto place = static_cast<int64_t>(2 * n);
      auto& span = spans[static_cast<size_t>((*items)[n].instance)];
      span = {span ? span->first : place, place + 1};
    }
  }
  return {};
}

int64_t AllRanks::num_instances() const {
  int64_t out = 0;
  for (const Expansion& rank : ranks) out += static_cast<int64_t>(rank.instances.size());
  return out;
}

int AllRanks::depth() const {
  int out = 1;
  for (const Buffer& buffer : schedule->buffers) out = std::max(out, buffer.depth);
  return out;
}

void Findings::add(std::string_view code, bool is_error, const std::string& task, int rank, std::string text) {
  if (is_error) ++num_errors_;
  if (++counts_[std::string(code)] > kMaxFindings) return;
  out_->push_back({std::string(code), is_error, task, rank, std::move(text)});
}

Graph::Graph(const AllRanks& team, int epochs, Edges edges) : team_(team), epochs_(epochs), edges_(edges) {
  add_nodes();
  add_signal_edges();
  add_collective_edges();
  sort();
  if (edges != happens_before || order_.size() != nodes_.size()) return;
  add_clocks();
  add_parts_before();
}

int64_t Graph::bytes_of_parts(const AllRanks& team, int epochs) {
  int64_t parts = 0;
  for (const Expansion& rank : team.ranks) {
    parts += std::count_if(rank.instances.begin(), rank.instances.end(), [&](const Instance& in) {
      return is_part(team.schedule->tasks[static_cast<size_t>(in.task)]);
    });
  }
  return team.num_instances() * epochs * base::ceil_div<int64_t>(parts, 64) * 8;
}

bool Graph::runs_beside_its_lane(int rank, int instance) const {
  return edges_ == happens_before && is_part(team_.schedule->tasks[static_cast<size_t>(team_.at(rank, instance).task)]);
}

/// What a node of a lane follows: the last one that ran alone, and the parts of a kernel since.
class Graph::Lanes {
 public:
  explicit Lanes(Edges edges) : edges_(edges) {}
  int count() const { return static_cast<int>(numbers_.size()); }
  void begin_epoch() {
    for (Chain& chain : chains_) chain.parts.clear(), chain.writers.clear();
  }
  void place(int rank, const Lane& lane, int index, Node* node) {
    Chain& chain = at(rank, lane, &node->chain);
    node->position = chain.length++;
    if (edges_ != deps_and_signals && chain.last >= 0) node->preds.push_back(chain.last);
    node->preds.insert(node->preds.end(), chain.parts.begin(), chain.parts.end());
    chain.parts.clear();
    chain.last = index;
  }
  void place_part(int rank, const Instance& in, bool adds, int index, Node* node) {
    Chain& chain = at(rank, in.lane, &node->chain);
    node->chain = kNoChain;
    if (chain.last >= 0) node->preds.push_back(chain.last);
    chain.parts.push_back(index);
    if (in.writes.empty() || in.writes[0].empty()) return;
    const auto [known, is_new] = chain.writers.try_emplace(key_of(in.writes[0][0]), index);
    if (!is_new && adds) node->preds.push_back(known->second);
    known->second = index;
  }

 private:
  using Key = std::array<int64_t, 2 + 2 * kMaxDims>;
  struct Chain {
    int length = 0, last = -1;
    std::vector<int> parts;
    std::map<Key, int> writers;  // the last part that wrote this box
  };
  static Key key_of(const Box& box) {
    Key key = {box.buffer, box.rank};
    std::copy_n(box.begin, kMaxDims, key.begin() + 2);
    std::copy_n(box.count, kMaxDims, key.begin() + 2 + kMaxDims);
    return key;
  }
  Chain& at(int rank, const Lane& lane, int* number) {
    *number = numbers_.try_emplace({rank, lane}, count()).first->second;
    if (static_cast<size_t>(*number) == chains_.size()) chains_.emplace_back();
    return chains_[static_cast<size_t>(*number)];
  }
  const Edges edges_;
  std::map<std::pair<int, Lane>, int> numbers_;
  std::vector<Chain> chains_;
};

size_t Graph::slot(int rank, int instance, int epoch) const {
  return static_cast<size_t>(epoch) * per_epoch_ + first_[static_cast<size_t>(rank)] + static_cast<size_t>(instance);
}

/// A collective's start is the node before its end.
int Graph::start_of(int rank, int instance, int epoch) const {
  const int end = end_of(rank, instance, epoch);
  const bool has_start = end > 0 && nodes_[static_cast<size_t>(end - 1)].is_start;
  return has_start && nodes_[static_cast<size_t>(end - 1)].instance == instance ? end - 1 : end;
}

void Graph::add_nodes() {
  for (const Expansion& rank : team_.ranks) {
    first_.push_back(per_epoch_);
    per_epoch_ += rank.instances.size();
  }
  ends_.assign(per_epoch_ * static_cast<size_t>(epochs_), -1);
  Lanes lanes(edges_);
  const auto number = [&] { return static_cast<int>(nodes_.size()); };
  for (int epoch = 0; epoch < epochs_; ++epoch) {
    lanes.begin_epoch();
    for (int rank = 0; rank < team_.size(); ++rank) {
      const auto& instances = team_.ranks[static_cast<size_t>(rank)].instances;
      const int join = epoch > 0 ? joins_[static_cast<size_t>((epoch - 1) * team_.size() + rank)] : -1;
      Node end{.rank = rank, .instance = -1, .epoch = epoch};
      std::vector<std::pair<int64_t, int>> events;  // of items: place in the list, node
      for (size_t i = 0; i < instances.size(); ++i) {
        const Instance& in = instances[i];
        const Task& task = team_.schedule->tasks[static_cast<size_t>(in.task)];
        const int index = static_cast<int>(i);
        Node node{.rank = rank, .instance = index, .epoch = epoch};
        for (int dep : in.deps) node.preds.push_back(end_of(rank, dep, epoch));
        if (join >= 0) node.preds.push_back(join);
        if (task.kind == Kind::collective) {
          Node start = std::exchange(node, {.rank = rank, .instance = index, .epoch = epoch});
          start.is_start = true;
          lanes.place(rank, in.lane, number(), &start);
          node.preds.push_back(number());
          nodes_.push_back(std::move(start));
        }
        if (const auto drawn = team_.items_of(rank, index); edges_ == progress && drawn) {
          Node start = std::exchange(node, {.rank = rank, .instance = index, .epoch = epoch});
          start.is_start = true;
          node.preds.push_back(number());
          events.emplace_back(drawn->first, number());
          events.emplace_back(drawn->second, number() + 1);
          nodes_.push_back(std::move(start));
        } else if (runs_beside_its_lane(rank, index)) {
          if (epoch == 0) node.part = num_parts_++;
          lanes.place_part(rank, in, task.combine == Combine::add, number(), &node);
        } else {
          lanes.place(rank, in.lane, number(), &node);
        }
        ends_[slot(rank, index, epoch)] = number();
        end.preds.push_back(number());
        nodes_.push_back(std::move(node));
      }
      std::sort(events.begin(), events.end());
      for (size_t i = 1; i < events.size(); ++i)
        nodes_[static_cast<size_t>(events[i].second)].preds.push_back(events[i - 1].second);
      lanes.place(rank, Lane{Engine::cpu, INT64_MIN}, number(), &end);
      joins_.push_back(number());
      nodes_.push_back(std::move(end));
    }
  }
  num_chains_ = lanes.count();
}

/// The adds without which a wait cannot hold: what is left if they and all that follow them in their lane were missing
/// is less than it wants.
void Graph::add_signal_edges() {
  struct Add {
    int instance;
    int64_t amount;
  };
  std::map<std::tuple<int, int, int64_t, int>, std::vector<Add>> words;  // at, signal, slot, sender
  for (int rank = 0; rank < team_.size(); ++rank) {
    const auto& instances = team_.ranks[static_cast<size_t>(rank)].instances;
    for (size_t i = 0; i < instances.size(); ++i) {
      for (const ResolvedSet& set : instances[i].sets) {
        words[{set.at, set.signal, set.slot, rank}].push_back({static_cast<int>(i), set.add});
      }
    }
  }
  const int depth = team_.depth();
  for (int rank = 0; rank < team_.size(); ++rank) {
    const auto& instances = team_.ranks[static_cast<size_t>(rank)].instances;
    for (size_t i = 0; i < instances.size(); ++i) {
      for (const ResolvedWait& wait : instances[i].waits) {
        const auto word = words.find({rank, wait.signal, wait.slot, wait.from});
        if (word == words.end()) continue;
        int64_t total = 0;
        for (const Add& add : word->second) total += add.amount;
        for (const Add& add : word->second) {
          const Lane lane = team_.at(wait.from, add.instance).lane;
          const bool is_alone = runs_beside_its_lane(wait.from, add.instance);
          int64_t without = total;
          for (const Add& other : word->second) {
            const bool follows = other.instance > add.instance && team_.at(wait.from, other.instance).lane == lane;
            if (other.instance == add.instance || (follows && !is_alone)) without -= other.amount;
          }
          if (!wait.previous && without >= wait.at_least) continue;
          for (int epoch = wait.previous ? depth : 0; epoch < epochs_; ++epoch) {
            const int from = end_of(wait.from, add.instance, wait.previous ? epoch - depth : epoch);
            nodes_[static_cast<size_t>(start_of(rank, static_cast<int>(i), epoch))].preds.push_back(from);
          }
        }
      }
    }
  }
}

/// No rank leaves a collective before all have entered it.
void Graph::add_collective_edges() {
  std::map<std::tuple<int, int, std::vector<int64_t>>, std::vector<std::pair<int, int>>> meetings;
  for (int rank = 0; rank < team_.size(); ++rank) {
    const auto& instances = team_.ranks[static_cast<size_t>(rank)].instances;
    for (size_t i = 0; i < instances.size(); ++i) {
      if (team_.schedule->tasks[static_cast<size_t>(instances[i].task)].kind != Kind::collective) continue;
      for (int epoch = 0; epoch < epochs_; ++epoch) {
        meetings[{epoch, instances[i].task, instances[i].loop_values}].emplace_back(
            start_of(rank, static_cast<int>(i), epoch), end_of(rank, static_cast<int>(i), epoch));
      }
    }
  }
  for (const auto& [key, members] : meetings) {
    for (const auto& mine : members) {
      for (const auto& theirs : members) nodes_[static_cast<size_t>(mine.second)].preds.push_back(theirs.first);
    }
  }
}

void Graph::sort() {
  std::vector<std::vector<int>> next(nodes_.size());
  std::vector<int> missing(nodes_.size(), 0);
  for (size_t i = 0; i < nodes_.size(); ++i) {
    for (int pred : nodes_[i].preds) next[static_cast<size_t>(pred)].push_back(static_cast<int>(i)), ++missing[i];
  }
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (missing[i] == 0) order_.push_back(static_cast<int>(i));
  }
  for (size_t at = 0; at < order_.size(); ++at) {
    for (int i : next[static_cast<size_t>(order_[at])]) {
      if (--missing[static_cast<size_t>(i)] == 0) order_.push_back(i);
    }
  }
}

void Graph::add_clocks() {
  const size_t width = static_cast<size_t>(num_chains_);
  clocks_.assign(nodes_.size() * width, 0);
  for (int index : order_) {
    int32_t* mine = &clocks_[static_cast<size_t>(index) * width];
    const Node& node = nodes_[static_cast<size_t>(index)];
    for (int pred : node.preds) {
      const int32_t* theirs = &clocks_[static_cast<size_t>(pred) * width];
      for (size_t c = 0; c < width; ++c) mine[c] = std::max(mine[c], theirs[c]);
    }
    if (node.chain != kNoChain) mine[node.chain] = node.position + 1;
  }
}

/// Parts have no lane that would order them, so clocks cannot stand for them.
void Graph::add_parts_before() {
  if (num_parts_ == 0) return;
  const auto width = static_cast<size_t>(base::ceil_div(num_parts_, 64));
  parts_before_.assign(nodes_.size() * width, 0);
  for (int index : order_) {
    uint64_t* mine = &parts_before_[static_cast<size_t>(index) * width];
    for (int pred : nodes_[static_cast<size_t>(index)].preds) {
      const uint64_t* theirs = &parts_before_[static_cast<size_t>(pred) * width];
      for (size_t w = 0; w < width; ++w) mine[w] |= theirs[w];
      const int part = nodes_[static_cast<size_t>(pred)].part;
      if (part >= 0) mine[part / 64] |= uint64_t{1} << part % 64;
    }
  }
}

std::vector<std::pair<int, int>> Graph::circle() const {
  std::vector<std::pair<int, int>> out;
  if (order_.size() == nodes_.size()) return out;
  std::vector<char> is_sorted(nodes_.size(), 0);
  for (int i : order_) is_sorted[static_cast<size_t>(i)] = 1;
  int at = 0;
  while (is_sorted[static_cast<size_t>(at)]) ++at;
  // Every node left has a predecessor that is left: walking back must meet itself.
  std::vector<int> seen_at(nodes_.size(), -1), path;
  while (seen_at[static_cast<size_t>(at)] < 0) {
    seen_at[static_cast<size_t>(at)] = static_cast<int>(path.size());
    path.push_back(at);
    const auto& preds = nodes_[static_cast<size_t>(at)].preds;
    at = *std::find_if(preds.begin(), preds.end(), [&](int p) { return !is_sorted[static_cast<size_t>(p)]; });
  }
  for (size_t i = path.size(); i-- > static_cast<size_t>(seen_at[static_cast<size_t>(at)]);) {
    const Node& node = nodes_[static_cast<size_t>(path[i])];
    if (node.instance >= 0) out.emplace_back(node.rank, node.instance);
  }
  return out;
}

bool Graph::before(std::pair<int, int> a, std::pair<int, int> b, int epoch) const {
  const int end = end_of(a.first, a.second, 0), start = start_of(b.first, b.second, epoch);
  if (end == start) return false;
  const Node& node = nodes_[static_cast<size_t>(end)];
  if (node.part >= 0) {
    const auto width = static_cast<size_t>(base::ceil_div(num_parts_, 64));
    return (parts_before_[static_cast<size_t>(start) * width + static_cast<size_t>(node.part) / 64] >> node.part % 64 &
            1) != 0;
  }
  return clocks_[static_cast<size_t>(start) * static_cast<size_t>(num_chains_) + static_cast<size_t>(node.chain)] >
         node.position;
}

std::vector<Graph::Step> Graph::steps() const {
  std::vector<Step> out;
  for (int index : order_) {
    const Node& node = nodes_[static_cast<size_t>(index)];
    if (node.epoch == 0 && node.instance >= 0) out.push_back({node.rank, node.instance, node.is_start});
  }
  return out;
}

bool overlap(const Box& a, const Box& b) {
  for (int d = 0; d < a.ndim; ++d) {
    if (a.begin[d] >= b.begin[d] + b.count[d] || b.begin[d] >= a.begin[d] + a.count[d]) return false;
  }
  return true;
}

std::string names_of(const AllRanks& team, const std::vector<std::pair<int, int>>& circle) {
  std::string out;
  for (size_t i = 0; i < circle.size() && i < 6; ++i) {
    out += base::format("{}{} of rank {}", i == 0 ? "" : " -> ", team.id(circle[i].first, circle[i].second),
                        circle[i].first);
  }
  return out + (circle.size() > 6 ? " -> ..." : "");
}

std::string box_text(const Schedule& schedule, const Box& box) {
  std::string out = schedule.buffers[static_cast<size_t>(box.buffer)].name + "@" + std::to_string(box.rank);
  for (int d = 0; d < box.ndim; ++d) out += base::format("[{}:{}]", box.begin[d], box.begin[d] + box.count[d]);
  return out;
}

}  // namespace overlace::spec
