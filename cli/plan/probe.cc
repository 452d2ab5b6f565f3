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

constexpr int kRepetitions = 9;
// Of the heap, in operands: those of the call, and what schedules that are measured beside each other put there.
constexpr size_t kOperands = 3, kSchedules = 10;
constexpr double kBurstUs = 1500;
constexpr size_t kMostText = 60000;  // of an exchange
constexpr size_t kSlack = size_t{16} << 20;

/// Refuses what this machine has not as many GPUs for.
void check_gpus(int ranks, const spec::Machine& machine) {
  std::string why;
  const int gpus = runtime::cuda_device_count(&why);
  if (gpus >= ranks) return;
  throw_error(Errc::not_supported,
              base::format("--tier probe: machine {} has GPUs, and {} ranks would run here on {}{}; wanted as many, or "
                           "the file of this machine (overlace calibrate)",
                           machine.name, ranks, gpus, why.empty() ? "" : " (" + why + ")"));
}

}  // namespace

size_t operand_bytes(const std::vector<spec::OpSpec>& ops) {
  int64_t most = 0;
  for (const spec::OpSpec& op : ops) {
    const int64_t rows = op.m + op.m / 8;  // a bucket's upper end
    const auto element = static_cast<int64_t>(std::max(dtype_bytes(op.dtype), dtype_bytes(op.out_dtype)));
    most = std::max(most, std::max({rows * op.k, op.n * op.k, rows * op.n}) * element);
  }
  return static_cast<size_t>(most);
}

RuntimeOptions probe_runtime(size_t operand_bytes, Backend backend) {
  RuntimeOptions out = RuntimeOptions::from_environment();
  out.backend = backend;
  out.heap_bytes = (kOperands + kSchedules) * operand_bytes + kSlack;
  return out;
}

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
  ++measured_;
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
  if (machine.is_gpu) check_gpus(op.ranks, machine);
  const size_t bytes = operand_bytes({op});
  const RuntimeOptions runtime = probe_runtime(bytes, machine.is_gpu ? Backend::cuda_peer : Backend::cpu);
  std::shared_ptr<const plan::Plan> out;
  const auto rank = [&](Bootstrap& bootstrap) {
    RuntimeOptions mine = runtime;
    if (machine.is_gpu) mine.device = bootstrap.rank();
    Rig rig(bootstrap, mine, bytes);
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
