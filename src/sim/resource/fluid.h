// Work that shares resources at rates that change whenever something starts or ends.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "overlace/machine.h"
#include "src/sim/engine/engine.h"

namespace overlace::sim {

/// What a flow takes of a resource, per unit of its work. A flow names each resource at most once.
struct Demand {
  uint32_t resource = 0;
  double per_unit = 0;
};
/// A rank that feels a flow, and as what. A flow that is there twice on one rank feels itself: it stands for two.
struct Presence {
  uint32_t rank = 0;
  spec::Load load = spec::Load::gemm_tensor;
};

inline constexpr size_t kMaxDemands = 6, kMaxPresences = 2;

struct FlowSpec {
  uint64_t work = 0;       // bytes or operations
  double most_per_ps = 0;  // units of work, alone; > 0
  double weight = 1;       // flows that compete get rates in these proportions
  double intensity = 1;    // part of a full load that others feel at its full rate
  uint32_t priority = 0;   // 0 goes first
  std::span<const Demand> demands{};
  std::span<const Presence> presences{};
  uint32_t handle = 0;  // of the event at its end
};

/// Rates: the flows of a priority class share what higher classes leave, max-min fair (progressive filling), never
/// above their own `most`; then factors of contention between flows that are present on one rank. Only flows that are
/// connected to a change, by resources or ranks, get new rates.
class Fluid {
 public:
  /// `factor[a][b]`: work of load a takes so many times as long beside b at full rate; 1 means no effect. Ranks are
  /// numbered 0 .. num_ranks - 1.
  explicit Fluid(uint32_t num_ranks = 0);
  void set_contention(std::span<const spec::Contention> list);

  /// Precondition: capacity_per_ps > 0, in units of the resource.
  uint32_t add_resource(double capacity_per_ps);

  /// The flow runs from now on; rates hold after the next settle().
  uint32_t start(Time now, const FlowSpec& spec);
  /// New rates since the last call, and events at the new ends. Call once after all changes of one time.
  void settle(Time now, EventQueue& queue);
  bool needs_settle() const { return !dirty_.empty() || !alone_.empty(); }

  /// An event came for the handle of flow `id`: true if the flow ends at this time, which also ends it; false if the
  /// event is stale, because rates have changed since.
  bool finish(Time now, uint32_t id);

  bool is_active(uint32_t id) const { return flows_[id].is_active; }
  double rate(uint32_t id) const { return flows_[id].rate; }
  /// Work done through a resource so far by flows that have ended, in its units.
  double used(uint32_t resource) const { return nodes_[num_ranks_ + resource].used; }
  /// Time that the flow lost to contention factors so far.
  Time lost_to_contention(uint32_t id) const { return static_cast<Time>(flows_[id].lost_ps); }
  void clear_flows();

 private:
  struct Flow {
    uint64_t work, left;
    double most, weight, intensity;
    double share, rate;  // by filling; after contention
    double felt;         // by others on its ranks
    Time since, end;
    double lost_ps;
    uint32_t priority, handle, visit;
    uint8_t num_demands, num_presences;
    bool is_active, is_open;
    std::array<Demand, kMaxDemands> demands;
    std::array<Presence, kMaxPresences> presences;
    std::span<const Demand> uses() const { return {demands.data(), num_demands}; }
    std::span<const Presence> where() const { return {presences.data(), num_presences}; }
  };
  /// A resource, or a rank as far as contention goes: what is connected to a flow.
  struct Node {
    double capacity = 0, left = 0, weight = 0, used = 0;
    uint32_t visit = 0;
    bool is_dirty = false;
    std::vector<uint32_t> flows;
  };
  template <class Visit>
  void for_nodes(const Flow& flow, Visit visit);
  void touch(const Flow& flow);
  void collect();
  void fill(std::span<const uint32_t> flows);
  void sum_felt();
  double slowdown(const Flow& flow) const;
  void settle_work(Flow& flow, double share, Time now);

  std::vector<Flow> flows_;
  std::vector<uint32_t> free_;
  std::vector<Node> nodes_;  // ranks, then resources
  uint32_t num_ranks_ = 0;
  std::vector<uint32_t> dirty_, alone_;     // nodes whose flows have come or gone since settle; flows that came
  std::vector<uint32_t> component_, near_;  // flows and nodes that are connected to them
  std::vector<uint32_t> by_class_, closing_;
  std::vector<double> old_shares_;
  uint32_t visit_ = 0;
  bool has_contention_ = false;
  std::array<std::array<double, spec::kNumLoads>, spec::kNumLoads> log_factor_{};
  std::vector<std::array<double, spec::kNumLoads>> felt_;  // by rank
};

}  // namespace overlace::sim
