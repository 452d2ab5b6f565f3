// The simulator as a cost model of the planner.
#pragma once

#include "overlace/sim.h"
#include "src/spec/cost_model.h"

namespace overlace::sim {

/// simulate() without exceptions.
base::Result<SimResult> try_simulate(const spec::Schedule& schedule, const spec::Machine& machine,
                                     const SimOptions& options = {});

/// The same times from one rank where the schedule's template proves all ranks alike and the options treat them alike:
/// neither spans, noise, late nor slow ranks. Precondition: the schedule holds its checks.
base::Result<SimResult> try_simulate_folded(const spec::Schedule& schedule, const spec::Machine& machine,
                                            const SimOptions& options = {});

/// Estimates are of one call without noise, folded, and have no band: how far they are off, the planner knows.
class Simulation final : public spec::CostModel {
 public:
  explicit Simulation(SimOptions options = {}) : options_(std::move(options)) {}
  base::Result<spec::Estimate> estimate(const spec::Schedule& schedule, const spec::OpSpec& op,
                                        const spec::Machine& machine) const override;

 private:
  SimOptions options_;
};

}  // namespace overlace::sim
