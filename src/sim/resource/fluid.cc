#include "src/sim/resource/fluid.h"

#include <algorithm>
#include <cmath>

namespace overlace::sim {
namespace {

constexpr double kSlack = 1 + 1e-12;  // levels closer than this are one
constexpr double kNothing = 1e-9;     // share of a capacity that counts as used up

}  // namespace

Fluid::Fluid(uint32_t num_ranks) : nodes_(num_ranks), num_ranks_(num_ranks) {}

void Fluid::set_contention(std::span<const spec::Contention> list) {
  log_factor_ = {};
  has_contention_ = false;
  for (const spec::Contention& c : list) {
    const double log = std::log(c.factor.value);
    log_factor_[static_cast<size_t>(c.slowed)][static_cast<size_t>(c.by)] = log;
    has_contention_ = has_contention_ || log != 0;
  }
}

uint32_t Fluid::add_resource(double capacity_per_ps) {
  nodes_.emplace_back().capacity = capacity_per_ps;
  return static_cast<uint32_t>(nodes_.size()) - 1 - num_ranks_;
}

template <class Visit>
void Fluid::for_nodes(const Flow& flow, Visit visit) {
  for (const Demand& d : flow.uses()) visit(num_ranks_ + d.resource);
  if (!has_contention_) return;
  const std::span<const Presence> where = flow.where();
  for (size_t i = 0; i < where.size(); ++i)
    if (i == 0 || where[i].rank != where[0].rank) visit(where[i].rank);
}

void Fluid::touch(const Flow& flow) {
  for_nodes(flow, [&](uint32_t n) {
    if (nodes_[n].is_dirty) return;
    nodes_[n].is_dirty = true;
    dirty_.push_back(n);
  });
}

uint32_t Fluid::start(Time now, const FlowSpec& spec) {
  OVERLACE_ASSERT(spec.demands.size() <= kMaxDemands && spec.presences.size() <= kMaxPresences);
  OVERLACE_ASSERT(spec.most_per_ps > 0 && spec.weight > 0);
  uint32_t id = static_cast<uint32_t>(flows_.size());
  if (free_.empty()) {
    flows_.emplace_back();
  } else {
    id = free_.back();
    free_.pop_back();
  }
  Flow& f = flows_[id];
  f.work = f.left = spec.work;
  f.most = spec.most_per_ps;
  f.weight = spec.weight;
  f.intensity = spec.intensity;
  f.share = f.rate = f.felt = 0;
  f.since = now;
  f.end = kNever;
  f.lost_ps = 0;
  f.priority = spec.priority;
  f.handle = spec.handle;
  f.visit = 0;
  f.is_active = true;
  f.num_demands = static_cast<uint8_t>(spec.demands.size());
  f.num_presences = static_cast<uint8_t>(spec.presences.size());
  std::copy(spec.demands.begin(), spec.demands.end(), f.demands.begin());
  std::copy(spec.presences.begin(), spec.presences.end(), f.presences.begin());
  for_nodes(f, [&](uint32_t n) { nodes_[n].flows.push_back(id); });
  touch(f);
  alone_.push_back(id);
  return id;
}

/// Flows that are connected to what is dirty, and all nodes near them.
void Fluid::collect() {
  ++visit_;
  component_.clear();
  near_.clear();
  const auto add_flow = [&](uint32_t id) {
    if (!flows_[id].is_active || flows_[id].visit == visit_) return;
    flows_[id].visit = visit_;
    component_.push_back(id);
  };
  const auto add_node = [&](uint32_t n) {
    Node& node = nodes_[n];
    if (node.visit == visit_) return;
    node.visit = visit_;
    near_.push_back(n);
    for (const uint32_t id : node.flows) add_flow(id);
  };
  for (const uint32_t n : dirty_) {
    nodes_[n].is_dirty = false;
    add_node(n);
  }
  for (const uint32_t id : alone_) add_flow(id);
  dirty_.clear();
  alone_.clear();
  for (size_t i = 0; i < component_.size(); ++i) for_nodes(flows_[component_[i]], add_node);
}

/// Progressive filling of one priority class from what is left of the nodes: all rates grow together, in proportion to
/// the weights, until a flow has its most or a resource is full.
void Fluid::fill(std::span<const uint32_t> flows) {
  for (const uint32_t n : near_) nodes_[n].weight = 0;
  for (const uint32_t id : flows) {
    Flow& f = flows_[id];
    f.is_open = true;
    for (const Demand& d : f.uses()) nodes_[num_ranks_ + d.resource].weight += f.weight * d.per_unit;
  }
  for (size_t num_open = flows.size(); num_open > 0;) {
    double level = std::numeric_limits<double>::infinity();
    for (const uint32_t id : flows) {
      if (flows_[id].is_open) level = std::min(level, flows_[id].most / flows_[id].weight);
    }
    for (const uint32_t n : near_) {
      if (nodes_[n].weight > 0 && n >= num_ranks_) level = std::min(level, nodes_[n].left / nodes_[n].weight);
    }
    const double reached = level * kSlack;
    const auto is_full = [&](const Demand& d) {
      const Node& node = nodes_[num_ranks_ + d.resource];
      return node.left <= reached * node.weight;
    };
    closing_.clear();
    for (const uint32_t id : flows) {
      const Flow& f = flows_[id];
      if (!f.is_open) continue;
      if (f.most <= reached * f.weight || std::any_of(f.uses().begin(), f.uses().end(), is_full))
        closing_.push_back(id);
    }
    if (closing_.empty()) {  // numbers beyond what a double can compare: nobody gets more
      for (const uint32_t id : flows) {
        if (flows_[id].is_open) closing_.push_back(id);
      }
    }
    for (const uint32_t id : closing_) {
      Flow& f = flows_[id];
      f.is_open = false;
      f.share = std::min(f.most, level * f.weight);
      for (const Demand& d : f.uses()) {
        Node& node = nodes_[num_ranks_ + d.resource];
        node.left = std::max(0.0, node.left - f.share * d.per_unit);
        if (node.left < node.capacity * kNothing) node.left = 0;
        node.weight -= f.weight * d.per_unit;
        if (node.weight < f.weight * d.per_unit * kNothing) node.weight = 0;
      }
    }
    num_open -= closing_.size();
  }
}

/// What is felt on the ranks of the component, load by load.
void Fluid::sum_felt() {
  felt_.resize(num_ranks_);
  for (const uint32_t n : near_)
    if (n < num_ranks_) felt_[n] = {};
  for (const uint32_t id : component_) {
    const Flow& f = flows_[id];
    for (const Presence& p : f.where()) felt_[p.rank][static_cast<size_t>(p.load)] += f.felt;
  }
}

/// Additive in the logarithm over all flows on the ranks of flow `id`, each as far as it runs at its full rate.
double Fluid::slowdown(const Flow& flow) const {
  double log = 0;
  for (const Presence& p : flow.where()) {
    const auto mine = static_cast<size_t>(p.load);
    const auto &row = log_factor_[mine], &felt = felt_[p.rank];
    for (size_t load = 0; load < row.size(); ++load)
      log += row[load] * (load == mine ? felt[load] - flow.felt : felt[load]);
  }
  return log;
}

/// Work done and time lost at the rate and share that held until now.
void Fluid::settle_work(Flow& f, double share, Time now) {
  const auto elapsed = static_cast<double>(now - f.since);
  const double done = f.rate * elapsed + 0.5;
  f.left = done < static_cast<double>(f.left) ? f.left - static_cast<uint64_t>(done) : 0;
  if (share > f.rate) f.lost_ps += elapsed * (1 - f.rate / share);
  f.since = now;
}

void Fluid::settle(Time now, EventQueue& queue) {
  if (!needs_settle()) return;
  collect();
  for (const uint32_t n : near_) nodes_[n].left = nodes_[n].capacity;
  old_shares_.clear();
  for (const uint32_t id : component_) old_shares_.push_back(flows_[id].share);
  by_class_ = component_;
  const auto less = [&](uint32_t a, uint32_t b) { return flows_[a].priority < flows_[b].priority; };
  if (!std::is_sorted(by_class_.begin(), by_class_.end(), less))
    std::stable_sort(by_class_.begin(), by_class_.end(), less);
  for (size_t begin = 0, end; begin < by_class_.size(); begin = end) {
    for (end = begin + 1; end < by_class_.size() && !less(by_class_[begin], by_class_[end]);) ++end;
    fill({by_class_.data() + begin, end - begin});
  }
  for (const uint32_t id : component_) {
    Flow& f = flows_[id];
    f.felt = f.intensity * f.share / f.most;
  }
  if (has_contention_) sum_felt();
  for (size_t i = 0; i < component_.size(); ++i) {
    const uint32_t id = component_[i];
    Flow& f = flows_[id];
    const double log = has_contention_ ? slowdown(f) : 0;
    const double rate = log == 0 ? f.share : f.share * std::exp(-log);
    if (rate == f.rate && f.end != kNever) continue;  // the event that is pending stays right
    settle_work(f, old_shares_[i], now);
    f.rate = rate;
    const Time before = f.end;
    if (f.left == 0) {
      f.end = now;
    } else if (rate > 0) {
      f.end = now + whole_ps(std::ceil(static_cast<double>(f.left) / rate));
    } else {
      f.end = kNever;  // until higher classes leave something
    }
    if (f.end != before && f.end != kNever) queue.push(f.end, f.handle);
  }
}

bool Fluid::finish(Time now, uint32_t id) {
  Flow& f = flows_[id];
  if (!f.is_active || f.end != now) return false;
  settle_work(f, f.share, now);
  f.is_active = false;
  for (const Demand& d : f.uses()) nodes_[num_ranks_ + d.resource].used += static_cast<double>(f.work) * d.per_unit;
  for_nodes(f, [&](uint32_t n) {
    std::vector<uint32_t>& list = nodes_[n].flows;
    list.erase(std::find(list.begin(), list.end(), id));
  });
  touch(f);
  free_.push_back(id);
  return true;
}

void Fluid::clear_flows() {
  flows_.clear();
  free_.clear();
  dirty_.clear();
  alone_.clear();
  for (Node& node : nodes_) {
    node.flows.clear();
    node.used = 0;
    node.is_dirty = false;
  }
}

}  // namespace overlace::sim
