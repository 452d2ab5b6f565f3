#include "cli/plan/probe.h"

#include <algorithm>

#include "cli/thread_ranks.h"
#include "overlace/error.h"
#include "overlace/sim.h"
#include "src/base/format.h"
#include "src/base/statistics.h"
#include "src/runtime/backend.h"
#include "src/sim/schedule/simulation.h"

namespace overlace::cli {
namespace {

using base::Result;
using base::Status;

constexpr int kRepetitions = 9, kProbedAtOnce = 4;
constexpr double kBurstUs = 1500;
constexpr size_t kMostText = 60000;  // of an exchange
constexpr size_t kSlack = size_t{16} << 20;

/// Of the largest operand or result.
size_t operand_bytes(const spec::OpSpec& op) {
  const int64_t element = static_cast<int64_t>(std::max(dtype_bytes(op.dtype), dtype_bytes(op.out_dtype)));
  return static_cast<size_t>(std::max({op.m * op.k, op.n * op.k, op.m * op.n}) * element);
}

/// Heap for those that are probed at once, whichever they are.
size_t heap_bytes(const spec::OpSpec& op, const spec::Machine& machine) {
  uint64_t most = 0;
  for (const plan::Candidate& one : plan::candidates(op, machine)) {
    const auto found = exec::footprint(spec::make_schedule(op, one.family, one.degree), 0, op.ranks);
    if (found.ok()) most = std::max(most, found->heap_bytes);
  }
  return 3 * operand_bytes(op) + kProbedAtOnce * most + kSlack;
}

RuntimeOptions runtime_of(const spec::OpSpec& op, const spec::Machine& machine) {
  RuntimeOptions out = RuntimeOptions::from_environment();
  out.backend = machine.is_gpu ? Backend::cuda_peer : Backend::cpu;
  out.heap_bytes = heap_bytes(op, machine);
  if (!machine.is_gpu) return out;
  std::string why;
  const int gpus = runtime::cuda_device_count(&why);
  if (gpus < op.ranks)
    throw_error(
        Errc::not_supported,
        base::format("--tier probe: machine {} has GPUs, and {} ranks would run here on {}{}; wanted as many, or "
                     "the file of this machine (overlace calibrate)",
                     machine.name, op.ranks, gpus, why.empty() ? "" : " (" + why + ")"));
  return out;
}

}  // namespace

Result<std::string> RigProber::from_first(const std::string& mine) {
  try {
    const std::string text = is_first() && mine.size() <= kMostText ? mine : "";
    const auto all = rig_.team().exchange({reinterpret_cast<const std::byte*>(text.data()), text.size()});
    return std::string(reinterpret_cast<const char*>(all.front().data()), all.front().size());
  } catch (...) {
    return base::status_of_current_exception();
  }
}

Result<std::vector<spec::Estimate>> RigProber::measure(const std::vector<spec::Schedule>& schedules,
                                                       const spec::OpSpec&) {
  std::vector<Competitor> list;
  for (const spec::Schedule& schedule : schedules)
    list.push_back({schedule.family, [this, &schedule](int iterations) { return rig_.run(schedule, iterations); }});
  MeasureOptions options;
  options.repetitions = kRepetitions;
  options.burst_us = kBurstUs;
  const auto timings = cli::measure(list, rig_, options);
  rig_.forget();
  if (!timings.ok()) return timings.status();
  std::vector<spec::Estimate> out;
  for (const Timing& one : *timings)
    out.push_back({one.median_us, base::percentile(one.samples_us, 10), base::percentile(one.samples_us, 90), {}});
  return out;
}

std::shared_ptr<const plan::Plan> plan_by_probe(const spec::OpSpec& op, const spec::Machine& machine,
                                                const plan::PlanOptions& options, const std::string& cache) {
  const RuntimeOptions runtime = runtime_of(op, machine);
  std::shared_ptr<const plan::Plan> out;
  const auto rank = [&](Bootstrap& bootstrap) {
    RuntimeOptions mine = runtime;
    if (machine.is_gpu) mine.device = bootstrap.rank();
    Rig rig(bootstrap, mine, operand_bytes(op));
    RigProber prober(rig);
    const sim::Simulation simulation;
    plan::Planner planner(machine, {.simulation = &simulation, .prober = &prober, .cache = cache});
    const auto plan = planner.plan(op, options);
    rig.team().agree(plan->schedule.to_json(), "the plan");
    rig.close();
    if (bootstrap.rank() == 0) out = plan;
    return Status();
  };
  run_thread_ranks(op.ranks, rank).or_throw();
  return out;
}

}  // namespace overlace::cli
