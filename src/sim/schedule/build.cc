// From a schedule to the graph: lanes become chains, as the backend runs them (docs/design/simulator.md).
#include <algorithm>

#include "src/sim/schedule/graph.h"
#include "src/spec/alike.h"
#include "src/spec/issue.h"

namespace overlace::sim {
namespace {

using spec::Engine;
using spec::Instance;

bool waits_for_peers(const Instance& in, int rank) {
  return std::any_of(in.waits.begin(), in.waits.end(),
                     [&](const spec::ResolvedWait& w) { return !w.previous && w.from != rank; });
}

}  // namespace

base::Result<Graph> build_graph(const spec::Schedule& schedule, const spec::Machine& machine, bool may_fold) {
  return GraphBuilder(schedule, machine, may_fold).build();
}

base::Result<Graph> GraphBuilder::build() {
  OVERLACE_TRY(expand());
  for (int rank = 0; rank < graph_.num_simulated(); ++rank) OVERLACE_TRY(add_rank(rank));
  graph_.first_of_rank.push_back(static_cast<uint32_t>(graph_.nodes.size()));
  lay_out();
  add_bounds();
  return std::move(graph_);
}

base::Status GraphBuilder::expand() {
  if (!machine_.has_costs()) {
    return base::error(Errc::not_supported, "machine {}: it has limits only, wanted costs of gemm, copy and link",
                       machine_.name);
  }
  const auto ranks = schedule_.params.find("G");
  const int64_t* given = ranks == schedule_.params.end() ? nullptr : std::get_if<int64_t>(&ranks->second);
  if (given != nullptr && (*given < 1 || *given > 65536))
    return base::error(Errc::bad_schedule, "schedule {}: G is {}, wanted 1 to 65536", schedule_.family, *given);
  graph_.ranks = given != nullptr ? static_cast<int>(*given) : machine_.ranks;
  graph_.is_gpu = machine_.is_gpu;
  for (const spec::Buffer& buffer : schedule_.buffers) graph_.depth = std::max(graph_.depth, buffer.depth);
  base::Result<std::vector<spec::Expansion>> all =
      may_fold_ ? spec::expand_alike(schedule_, graph_.ranks) : spec::expand_all(schedule_, graph_.ranks);
  if (!all.ok()) return all.status();
  graph_.expansions = std::move(all).value();
  size_t instances = 0;
  for (const spec::Expansion& expansion : graph_.expansions) instances += expansion.instances.size();
  instances = std::min<size_t>(instances, 1 << 14);
  graph_.nodes.reserve(3 * instances);  // a fused kernel: the tiles of a part, their stores and their join
  edges_.reserve(6 * instances);
  graph_.first_id = spec::first_words(graph_.expansions[0]);
  graph_.words_per_pair = graph_.first_id.back();
  graph_.first_id.pop_back();
  const auto g = static_cast<size_t>(graph_.ranks), simulated = graph_.expansions.size();
  if (graph_.words_per_pair * g * g > (size_t{1} << 28)) {
    return base::error(Errc::not_supported, "schedule {}: {} words of signals on {} ranks, at most 2^28 are simulated",
                       schedule_.family, graph_.words_per_pair * g * g, graph_.ranks);
  }
  graph_.adds_per_epoch.assign(graph_.words_per_pair * simulated * g, 0);
  graph_.static_bytes.resize(simulated);
  flops_.assign(simulated, 0);
  host_.assign(simulated, machine_.latency.host_call_us.value);
  return {};
}

/// Chains of instances that run one after the other. GPUs: all sm lanes are one stream, in the order of issue.
std::vector<std::vector<int>> GraphBuilder::streams_of(int rank) const {
  const spec::Expansion& expansion = graph_.expansions[static_cast<size_t>(rank)];
  std::vector<spec::LaneQueue> lanes = spec::lanes_of(expansion);
  std::vector<std::vector<int>> out;
  std::vector<int> stream;
  if (machine_.is_gpu) {
    for (const spec::Step& step : spec::issue_order(expansion, lanes))
      if (expansion.instances[static_cast<size_t>(step.instance)].lane.engine == Engine::sm)
        stream.push_back(step.instance);
  }
  for (spec::LaneQueue& queue : lanes)
    if (!machine_.is_gpu || queue.lane.engine != Engine::sm) out.push_back(std::move(queue.instances));
  if (machine_.is_gpu) out.push_back(std::move(stream));
  return out;
}

uint32_t GraphBuilder::add_node(int rank) {
  graph_.nodes.emplace_back().rank = rank;
  return static_cast<uint32_t>(graph_.nodes.size()) - 1;
}

void GraphBuilder::connect(uint32_t from, uint32_t to, double delay_us) {
  edges_.push_back({from, to, ps_of_us(delay_us)});
  ++graph_.nodes[to].preds;
}

/// Until a task starts that waits for one on another lane.
double GraphBuilder::crossing_us(const Instance& to) const {
  return machine_.latency.event_us.value + (to.lane.engine == Engine::sm ? 0 : machine_.copy.trigger_us.value);
}

void GraphBuilder::add_waits(uint32_t node, const Instance& in, Waits which) {
  const int rank = graph_.nodes[node].rank;
  for (const spec::ResolvedWait& w : in.waits) {
    if (which != Waits::all && w.previous != (which == Waits::credits)) continue;
    const uint32_t id = graph_.first_id[static_cast<size_t>(w.signal)] + static_cast<uint32_t>(w.slot);
    graph_.waits.push_back({node, graph_.word(rank, id, w.from), w.previous ? 0 : w.at_least, w.previous});
  }
}

void GraphBuilder::add_sets(uint32_t node, const Instance& in) {
  const int rank = graph_.nodes[node].rank;
  for (const spec::ResolvedSet& s : in.sets) {
    const uint32_t id = graph_.first_id[static_cast<size_t>(s.signal)] + static_cast<uint32_t>(s.slot);
    const uint32_t word = graph_.word(s.at, id, rank);
    graph_.adds_per_epoch[word] += s.add;
    // A counter of this rank is one that a copy lane waits for.
    const bool is_counter = schedule_.signals[static_cast<size_t>(s.signal)].scope == spec::Scope::device;
    const double seen_us = is_counter     ? machine_.copy.trigger_us.value
                           : s.at == rank ? 0
                                          : machine_.latency.flag_us.value;
    graph_.adds.push_back({node, word, s.add, ps_of_us(seen_us)});
  }
}

void GraphBuilder::count_bytes(int rank, const Work& work) {
  RankBytes& mine = graph_.static_bytes[static_cast<size_t>(rank)];
  mine.memory += work.memory_bytes;
  mine.egress += work.link_bytes;
  if (work.link_bytes > 0 && work.to >= 0) {
    RankBytes& theirs = graph_.static_bytes[static_cast<size_t>(graph_.home(work.to))];
    theirs.ingress += work.link_bytes;
    theirs.memory += work.peer_memory_bytes;
  } else {
    mine.ingress += work.link_bytes;  // a collective: as much comes as goes
  }
  flops_[static_cast<size_t>(rank)] += work.flops;
}

/// Work per ps alone, and what a unit of it takes of links, memory and, on CPU ranks, the core.
void GraphBuilder::set_flow(Node& node, const Work& work) {
  node.to = work.to;
  node.link_bytes = work.link_bytes;
  node.memory_bytes = work.memory_bytes;
  node.peer_memory_bytes = work.peer_memory_bytes;
  node.moved_bytes = work.moved_bytes;
  node.flops = work.flops;
  if (work.amount == 0) return;
  const double amount = static_cast<double>(work.amount);
  node.amount = work.amount;
  node.most_per_ps = amount / std::max(work.flow_us * 1e6, 1.0);
  const int rank = node.rank;
  const double per_link = static_cast<double>(work.link_bytes) / amount;
  const double per_memory = static_cast<double>(work.memory_bytes) / amount;
  const bool is_collective = work.to < 0 && work.link_bytes > 0;
  node.demand(resource_of(rank, Kept::egress), per_link);
  const int peer = graph_.home(std::max(work.to, 0));
  node.demand(resource_of(is_collective ? rank : peer, Kept::ingress), per_link);
  if (machine_.memory.hbm_GBps.value > 0) {
    const double per_peer_memory = static_cast<double>(work.peer_memory_bytes) / amount;
    const bool is_one = peer == rank && work.peer_memory_bytes > 0;  // folded: a flow names a resource once
    node.demand(resource_of(rank, Kept::memory), is_one ? per_memory + per_peer_memory : per_memory);
    if (!is_one) node.demand(resource_of(peer, Kept::memory), per_peer_memory);
  }
  if (!machine_.is_gpu) node.demand(resource_of(rank, Kept::core), 1 / node.most_per_ps);
  // What competes for memory or a link gets equal bytes.
  if (per_link > 0 || per_memory > 0) node.weight = 1 / std::max(per_link, per_memory);
  node.presences[node.num_presences++] = {static_cast<uint32_t>(rank), work.load};
  if (work.link_bytes > 0 && work.to >= 0)
    node.presences[node.num_presences++] = {static_cast<uint32_t>(peer), spec::Load::ce_in};
}

base::Status GraphBuilder::add_instance(int rank, int index, uint32_t id) {
  const spec::Expansion& expansion = graph_.expansions[static_cast<size_t>(rank)];
  const Instance& in = expansion.instances[static_cast<size_t>(index)];
  const base::Result<Work> found = work_of(schedule_, expansion, in, machine_);
  if (!found.ok()) return found.status();
  const Work& work = *found;
  const spec::Machine::Latency& latency = machine_.latency;
  Node& node = graph_.nodes[id];
  node.instance = index;
  node.jitter = index;
  node.start_ps = ps_of_us(work.start_us);
  set_flow(node, work);
  const bool is_sm = in.lane.engine == Engine::sm;
  if (is_sm && !work.is_empty()) node.launch_ps = ps_of_us(latency.launch_us.value);
  if (!in.sets.empty()) node.post_ps = ps_of_us(is_sm ? latency.signal_us.value : machine_.copy.post_us.value);
  if (task_of(in).kind == spec::Kind::collective) {
    const auto [it, is_new] =
        collectives_.try_emplace({in.task, in.loop_values}, static_cast<int>(graph_.members.size()));
    if (is_new) graph_.members.emplace_back();
    graph_.members[static_cast<size_t>(it->second)].push_back(id);
    node.collective = it->second;
  }
  count_bytes(rank, work);
  host_[static_cast<size_t>(rank)] +=
      static_cast<double>(work.kernels) *
          (task_of(in).kind == spec::Kind::collective ? latency.host_collective_us : latency.host_kernel_us).value +
      static_cast<double>(work.copies) * latency.host_copy_us.value +
      (waits_for_peers(in, rank) ? latency.host_kernel_us.value : 0) +
      (in.sets.empty() ? 0
       : is_sm         ? latency.host_kernel_us.value
                       : latency.host_copy_us.value);
  add_waits(id, in, machine_.is_gpu ? Waits::data : Waits::all);
  add_sets(id, in);
  return {};
}

base::Status GraphBuilder::add_rank(int rank) {
  const std::vector<Instance>& list = graph_.expansions[static_cast<size_t>(rank)].instances;
  const spec::Machine::Latency& latency = machine_.latency;
  graph_.first_of_rank.push_back(static_cast<uint32_t>(graph_.nodes.size()));
  const uint32_t begin = add_node(rank), end = add_node(rank);
  graph_.begins.push_back(begin);
  graph_.ends.push_back(end);
  graph_.nodes[end].post_ps = ps_of_us(latency.call_us.value);
  node_of_.assign(list.size(), 0);
  join_of_.clear();
  std::vector<int> stream_of(list.size(), 0), parts;
  for (size_t i = 0; i < list.size(); ++i) {
    if (is_part(list[i])) parts.push_back(static_cast<int>(i));
  }
  // GPUs: credits of all instances are awaited at once, before lanes fork.
  bool has_previous = false;
  for (const Instance& in : list) {
    if (!machine_.is_gpu || is_part(in)) continue;
    for (const spec::ResolvedWait& w : in.waits) has_previous = has_previous || w.previous;
    add_waits(begin, in, Waits::credits);
  }
  if (has_previous) graph_.nodes[begin].post_ps = ps_of_us(latency.wait_us.value);

  const std::vector<std::vector<int>> streams = streams_of(rank);
  uint32_t enter = 0, leave = 0;
  bool has_lanes = false;
  for (size_t s = 0; s < streams.size(); ++s) {
    uint32_t last = begin;
    for (const int index : streams[s]) {
      const Instance& in = list[static_cast<size_t>(index)];
      const bool is_copy_lane = machine_.is_gpu && in.lane.engine != Engine::sm;
      stream_of[static_cast<size_t>(index)] = static_cast<int>(s);
      if (is_part(in)) {
        node_of_[static_cast<size_t>(index)] = leave;
        if (enter != 0) continue;  // one kernel for all parts
        enter = add_node(rank);
        leave = add_node(rank);
        node_of_[static_cast<size_t>(index)] = leave;
        graph_.nodes[enter].launch_ps = ps_of_us(latency.launch_us.value);
        connect(last, enter);
        host_[static_cast<size_t>(rank)] += latency.host_kernel_us.value;
        last = leave;
        continue;
      }
      const uint32_t node = add_node(rank);
      node_of_[static_cast<size_t>(index)] = node;
      OVERLACE_TRY(add_instance(rank, index, node));
      const bool is_fork = last == begin && is_copy_lane;
      if (is_fork && !has_lanes) host_[static_cast<size_t>(rank)] += latency.host_lanes_us.value;
      has_lanes = has_lanes || is_fork;
      connect(last, node, is_fork ? crossing_us(in) : waits_for_peers(in, rank) ? latency.wait_us.value : 0);
      last = node;
    }
    const bool is_copy_lane =
        machine_.is_gpu && !streams[s].empty() && list[static_cast<size_t>(streams[s][0])].lane.engine != Engine::sm;
    connect(last, end, is_copy_lane ? latency.event_us.value : 0);
  }
  if (enter != 0) {
    graph_.kernel_enters.push_back(enter);
    const Instance& first = list[static_cast<size_t>(parts.front())];
    graph_.kernels.emplace_back(leave, spec::lane_name(first.lane));
    OVERLACE_TRY(add_kernel(rank, parts, enter, leave));
  }
  for (size_t i = 0; i < list.size(); ++i) {
    for (const int dep : list[i].deps) {
      const auto d = static_cast<size_t>(dep);
      const bool crosses = stream_of[d] != stream_of[i];
      if (machine_.is_gpu && !crosses) continue;  // one behind the other already
      if (is_part(list[i]) && is_part(list[d])) continue;
      connect(node_of_[d], is_part(list[i]) ? enter : node_of_[i], crosses ? crossing_us(list[i]) : 0);
    }
  }
  return {};
}

/// Edges, waits and adds by node.
void GraphBuilder::lay_out() {
  std::vector<Node>& nodes = graph_.nodes;
  for (const LooseEdge& e : edges_) ++nodes[e.from].num_edges;
  uint32_t at = 0;
  for (Node& n : nodes) {
    n.first_edge = at;
    at += n.num_edges;
    n.num_edges = 0;
  }
  graph_.edges.resize(at);
  for (const LooseEdge& e : edges_) {
    Node& n = nodes[e.from];
    graph_.edges[n.first_edge + n.num_edges++] = {e.to, e.delay};
  }
  const auto group = [&](auto& list, auto first, auto count) {
    const auto is_before = [](const auto& a, const auto& b) { return a.node < b.node; };
    if (!std::is_sorted(list.begin(), list.end(), is_before)) std::stable_sort(list.begin(), list.end(), is_before);
    for (size_t i = 0; i < list.size(); ++i) {
      Node& n = nodes[list[i].node];
      if (n.*count == 0) n.*first = static_cast<uint32_t>(i);
      ++(n.*count);
    }
  };
  group(graph_.waits, &Node::first_wait, &Node::num_waits);
  group(graph_.adds, &Node::first_set, &Node::num_sets);
}

/// No call is shorter than the work of one rank at the best rate of what it needs.
void GraphBuilder::add_bounds() {
  const auto us = [](double amount, double GBps) { return GBps > 0 ? amount / GBps * 1e-3 : 0; };
  double best_rate = 0;  // operations per us
  for (const Node& n : graph_.nodes) {
    graph_.serial_us += n.alone_us();
    if (n.num_presences > 0 && n.presences[0].load == spec::Load::gemm_tensor)
      best_rate = std::max(best_rate, n.most_per_ps / n.intensity * 1e6);
  }
  for (const Edge& e : graph_.edges) graph_.serial_us += us_of_ps(e.delay);
  for (const Add& a : graph_.adds) graph_.serial_us += us_of_ps(a.delay);
  if (graph_.is_folded()) graph_.serial_us *= graph_.ranks;
  for (size_t r = 0; r < graph_.static_bytes.size(); ++r) {
    const RankBytes& b = graph_.static_bytes[r];
    double bound = best_rate > 0 ? flops_[r] / best_rate : 0;
    bound = std::max(bound, us(static_cast<double>(b.egress), machine_.link.egress_GBps.value));
    bound = std::max(bound, us(static_cast<double>(b.ingress), machine_.link.ingress_GBps.value));
    bound = std::max(bound, us(static_cast<double>(b.memory), machine_.memory.hbm_GBps.value));
    graph_.bound_us = std::max(graph_.bound_us, bound);
    graph_.host_us = std::max(graph_.host_us, host_[r]);
  }
}

std::string Graph::word_name(uint32_t word) const {
  const uint32_t id = word / static_cast<uint32_t>(ranks) % words_per_pair;
  const size_t signal =
      static_cast<size_t>(std::upper_bound(first_id.begin(), first_id.end(), id) - first_id.begin()) - 1;
  return spec::word_name(*schedule, static_cast<int>(signal), id - first_id[signal]);
}

std::string Graph::lane_name(const Node& node) const { return spec::lane_name(instance(node).lane); }

}  // namespace overlace::sim
