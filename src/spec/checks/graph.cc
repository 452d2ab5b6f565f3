#include "src/spec/checks/graph.h"

#include <algorithm>

#include "src/base/format.h"
#include "src/base/status.h"

namespace overlace::spec {

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

Graph::Graph(const AllRanks& team, int epochs, Edges edges) : team_(team), epochs_(epochs) {
  add_nodes(edges);
  add_signal_edges();
  add_collective_edges();
  sort();
  if (edges == all && order_.size() == nodes_.size()) add_clocks();
}

size_t Graph::slot(int rank, int instance, int epoch) const {
  return static_cast<size_t>(epoch) * per_epoch_ + first_[static_cast<size_t>(rank)] + static_cast<size_t>(instance);
}

/// A collective's start is the node before its end.
int Graph::start_of(int rank, int instance, int epoch) const {
  const int end = end_of(rank, instance, epoch);
  const bool has_start = end > 0 && nodes_[static_cast<size_t>(end - 1)].is_start;
  return has_start && nodes_[static_cast<size_t>(end - 1)].instance == instance ? end - 1 : end;
}

void Graph::add_nodes(Edges edges) {
  for (const Expansion& rank : team_.ranks) {
    first_.push_back(per_epoch_);
    per_epoch_ += rank.instances.size();
  }
  ends_.assign(per_epoch_ * static_cast<size_t>(epochs_), -1);
  std::map<std::pair<int, Lane>, int> chains;
  std::map<int, std::pair<int, int>> last;  // chain -> (length, last node)
  auto add = [&](Node node) {
    auto& [length, tail] = last.try_emplace(node.chain, 0, -1).first->second;
    node.position = length++;
    if (tail >= 0 && edges == all) node.preds.push_back(tail);
    tail = static_cast<int>(nodes_.size());
    nodes_.push_back(std::move(node));
    return tail;
  };
  for (int epoch = 0; epoch < epochs_; ++epoch) {
    for (int rank = 0; rank < team_.size(); ++rank) {
      const auto& instances = team_.ranks[static_cast<size_t>(rank)].instances;
      const int join = epoch > 0 ? joins_[static_cast<size_t>((epoch - 1) * team_.size() + rank)] : -1;
      std::vector<int> ends;
      for (size_t i = 0; i < instances.size(); ++i) {
        const Instance& in = instances[i];
        const int index = static_cast<int>(i);
        const int chain = chains.try_emplace({rank, in.lane}, static_cast<int>(chains.size())).first->second;
        Node node{rank, index, epoch, false, chain, 0, {}};
        for (int dep : in.deps) node.preds.push_back(end_of(rank, dep, epoch));
        if (join >= 0) node.preds.push_back(join);
        if (team_.schedule->tasks[static_cast<size_t>(in.task)].kind == Kind::collective) {
          node.is_start = true;
          const int start = add(node);
          node = {rank, index, epoch, false, chain, 0, {start}};
        }
        ends_[slot(rank, index, epoch)] = add(std::move(node));
        ends.push_back(ends_[slot(rank, index, epoch)]);
      }
      const int chain =
          chains.try_emplace({rank, Lane{Engine::cpu, INT64_MIN}}, static_cast<int>(chains.size())).first->second;
      joins_.push_back(add({rank, -1, epoch, false, chain, 0, std::move(ends)}));
    }
  }
  num_chains_ = static_cast<int>(chains.size());
}

/// The adds without which a wait cannot hold: what is left if they and all later ones of their lane were missing is
/// less than it wants.
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
          int64_t without = total;
          for (const Add& other : word->second) {
            if (team_.at(wait.from, other.instance).lane == lane && other.instance >= add.instance)
              without -= other.amount;
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
    mine[node.chain] = node.position + 1;
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

bool Graph::before(std::pair<int, int> a, int ea, std::pair<int, int> b, int eb) const {
  const int end = end_of(a.first, a.second, ea), start = start_of(b.first, b.second, eb);
  if (end == start) return false;
  const Node& node = nodes_[static_cast<size_t>(end)];
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
