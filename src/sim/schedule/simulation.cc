#include "src/sim/schedule/simulation.h"

#include <algorithm>

#include "src/sim/schedule/graph.h"

namespace overlace::sim {

base::Result<SimResult> try_simulate(const spec::Schedule& schedule, const spec::Machine& machine,
                                     const SimOptions& options) {
  const base::Result<Graph> graph = build_graph(schedule, machine);
  if (!graph.ok()) return graph.status();
  return run_graph(*graph, machine, options);
}

base::Result<SimResult> try_simulate_folded(const spec::Schedule& schedule, const spec::Machine& machine,
                                            const SimOptions& options) {
  const bool is_alike = options.seed == 0 && options.start_us.empty() && options.slower.empty() && !options.has_spans;
  const base::Result<Graph> graph = build_graph(schedule, machine, is_alike);
  if (!graph.ok()) return graph.status();
  base::Result<SimResult> out = run_graph(*graph, machine, options);
  return out.ok() || !graph->is_folded() ? std::move(out) : try_simulate(schedule, machine, options);
}

SimResult simulate(const spec::Schedule& schedule, const spec::Machine& machine, const SimOptions& options) {
  return try_simulate(schedule, machine, options).value();
}

double SimResult::us() const {
  const size_t n = call_ps.size();
  if (n == 0) return 0;
  const size_t half = n / 2;
  const Time begin = half == 0 ? 0 : call_ps[half - 1];
  const double device_us = us_of_ps(call_ps.back() - begin) / static_cast<double>(n - half);
  return n > 1 ? std::max(device_us, host_us) : device_us;  // one call is queued before it begins
}

base::Result<spec::Estimate> Simulation::estimate(const spec::Schedule& schedule, const spec::OpSpec&,
                                                  const spec::Machine& machine) const {
  const base::Result<SimResult> result = try_simulate_folded(schedule, machine, options_);
  if (!result.ok()) return result.status();
  spec::Estimate out;
  out.us = result->us();
  const double bound = std::min(result->bound_us, out.us);
  const double contention = std::min(result->contention_us / options_.calls, out.us - bound);
  out.parts = {
      {"bound", bound}, {"contention", contention}, {"order, waits and launches", out.us - bound - contention}};
  return out;
}

}  // namespace overlace::sim
