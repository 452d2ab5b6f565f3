#include "cli/plan/probe.h"

#include "cli/thread_ranks.h"
#include "overlace/error.h"
#include "overlace/sim.h"
#include "src/base/format.h"
#include "src/context/machine.h"
#include "src/runtime/backend.h"
#include "src/sim/schedule/simulation.h"
#include "src/tuning/prober.h"

namespace overlace::cli {
namespace {

using base::Status;

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

std::shared_ptr<const plan::Plan> plan_by_probe(const spec::OpSpec& op, const spec::Machine& machine,
                                                const plan::PlanOptions& options, const std::string& cache) {
  if (machine.is_gpu) check_gpus(op.ranks, machine);
  RuntimeOptions options_of_all = RuntimeOptions::from_environment();
  options_of_all.backend = machine.is_gpu ? Backend::cuda_peer : Backend::cpu;
  std::shared_ptr<const plan::Plan> out;
  const auto rank = [&](Bootstrap& bootstrap) {
    RuntimeOptions mine = options_of_all;
    if (machine.is_gpu) mine.device = bootstrap.rank();
    Runtime runtime = Runtime::open(bootstrap, mine);
    if (!machine.is_gpu) pin_to_core(static_cast<size_t>(bootstrap.rank()));
    tuning::ChannelProber prober(runtime.world().channel(machine.is_gpu ? StreamRef::cuda(nullptr) : StreamRef::cpu()));
    const sim::Simulation simulation;
    spec::Machine here = machine;
    if (here.is_gpu) here.compute_capability = context::capability_of_team(runtime);
    plan::Planner planner(here, {.simulation = &simulation, .prober = &prober, .cache = cache});
    const auto plan = planner.plan(op, options);
    runtime.world().agree(plan->schedule.to_json(), "the plan");
    runtime.close();
    if (bootstrap.rank() == 0) out = plan;
    return Status();
  };
  run_thread_ranks(op.ranks, rank).or_throw();
  return out;
}

}  // namespace overlace::cli
