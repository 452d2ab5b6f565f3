#include "cli/tune/tune.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "cli/plan/probe.h"
#include "cli/progress.h"
#include "cli/run/outputs.h"
#include "cli/thread_ranks.h"
#include "overlace/context.h"
#include "overlace/error.h"
#include "src/base/env.h"
#include "src/base/format.h"
#include "src/base/half.h"
#include "src/base/timing.h"
#include "src/plan/cache.h"
#include "src/runtime/backend.h"
#include "src/sim/schedule/simulation.h"
#include "src/spec/operators.h"

namespace overlace::cli {
namespace {

using base::Status;

constexpr int kMostRanks = 64;
constexpr double kMostSeconds = 1e6;

struct Work {
  std::vector<TuneProblem> problems;
  RuntimeOptions runtime;
  size_t operand_bytes = 0;
  std::string machine, cache;
  double seconds = 0;
  bool shows_progress = false;
};

Backend backend_of(const TuneWords& words, int gpus, const std::string& why_no_gpu) {
  const std::string& asked = words.backend != "auto" ? words.backend : base::env().backend;
  if (asked != "auto" && asked != "cpu" && asked != "cuda_peer")
    base::invalid_argument("--backend is {}, wanted auto, cpu or cuda_peer", asked).or_throw();
  if (asked == "cpu" || (asked == "auto" && gpus < 2)) return Backend::cpu;
  if (gpus < 2)
    throw_error(Errc::not_supported, base::format("--backend is cuda_peer, wanted 2 GPUs at least, found {}{}", gpus,
                                                  why_no_gpu.empty() ? "" : ": " + why_no_gpu));
  return Backend::cuda_peer;
}

int ranks_of(const TuneWords& words, bool is_gpu, int gpus) {
  const int most = is_gpu ? gpus : kMostRanks;
  if (words.ranks == 0) return is_gpu ? gpus : 2;
  if (words.ranks < 2 || words.ranks > most)
    base::invalid_argument("--ranks is {}, wanted 2 to {}", words.ranks, most).or_throw();
  return words.ranks;
}

DType dtype_of(const std::string& name, bool is_gpu) {
  DType out = is_gpu ? DType::bf16 : DType::fp32;
  const bool is_known = name.empty() || base::parse_dtype(name.c_str(), &out);
  if (!is_known || (out != DType::fp32 && out != DType::bf16 && out != DType::fp16))
    base::invalid_argument("--dtype is {}, wanted fp32, bf16 or fp16", name).or_throw();
  return out;
}

/// Of tuned problems; `plan` has times of all that was measured.
Tuned tuned_of(const TuneProblem& problem, const plan::Candidate& usual, const plan::Plan& plan) {
  const auto us_of = [&](const plan::Candidate& candidate) {
    const auto found = std::find_if(plan.others.begin(), plan.others.end(),
                                    [&](const plan::Alternative& one) { return one.candidate == candidate; });
    return found == plan.others.end() ? std::nan("") : found->us;
  };
  return {problem,
          false,
          usual,
          plan.candidate,
          us_of(usual),
          us_of(plan.candidate),
          us_of({std::string(spec::kLibrary), 1})};
}

/// Collective: what the first rank's clock says.
bool is_over(RigProber& prober, double begin, double seconds) {
  const std::string mine = seconds > 0 && base::steady_s() - begin > seconds ? "over" : "goes on";
  return prober.from_first(mine).value() == "over";
}

/// One rank; the first one's result counts.
Status tune_rank(Bootstrap& bootstrap, const Work& work, TuneResult* out) {
  const double begin = base::steady_s();
  RuntimeOptions runtime = work.runtime;
  if (runtime.backend == Backend::cuda_peer) runtime.device = bootstrap.rank();
  Rig rig(bootstrap, runtime, work.operand_bytes);
  RigProber prober(rig);
  const Context context = Context::open(rig.runtime(), {.machine = work.machine});
  const spec::Machine& machine = context.machine();
  if (!machine.has_costs())
    return base::error(Errc::not_supported,
                       "tune: {} ({}), which has no costs to choose candidates by; wanted --machine NAME or FILE.json "
                       "(overlace calibrate)",
                       machine.name, context.machine_origin());
  const sim::Simulation simulation;
  plan::Planner planner(machine, {.simulation = &simulation, .prober = &prober, .cache = work.cache});
  plan::Planner untuned(machine);
  TuneResult result{machine.name, context.machine_origin(), work.cache, 0, {}, {}};
  Progress progress(stderr, work.shows_progress && prober.is_first(), static_cast<double>(work.problems.size()));
  for (const TuneProblem& problem : work.problems) {
    if (!result.left.empty() || is_over(prober, begin, work.seconds)) {
      result.left.push_back(problem);
      continue;
    }
    progress.begin(problem.op.to_string(), 1);
    const int before = prober.measured();
    const auto plan = planner.plan(problem.op, {.limit = plan::Tier::probe});
    if (plan->tier != plan::Tier::probe)
      return base::error(Errc::internal, "tune: {} was not measured: {}", problem.op.to_string(), plan->reason);
    result.tuned.push_back(tuned_of(problem, untuned.plan(problem.op)->candidate, *plan));
    result.tuned.back().is_kept = prober.measured() == before;
  }
  progress.clear();
  rig.close();
  result.seconds = base::steady_s() - begin;
  if (bootstrap.rank() == 0) *out = std::move(result);
  return {};
}

}  // namespace

int tune(const TuneWords& words) {
  std::string why_no_gpu;
  const int gpus = runtime::cuda_device_count(&why_no_gpu);
  const Backend backend = backend_of(words, gpus, why_no_gpu);
  const bool is_gpu = backend == Backend::cuda_peer;
  const int ranks = ranks_of(words, is_gpu, gpus);
  if (!(words.seconds >= 0 && words.seconds <= kMostSeconds))
    base::invalid_argument("--seconds is {}, wanted 0 to {}", words.seconds, kMostSeconds).or_throw();
  Work work;
  work.problems = problems_of(words, ranks, dtype_of(words.dtype, is_gpu));
  work.cache = words.cache.empty() ? base::env().plan_cache : words.cache;
  if (work.cache.empty())
    base::invalid_argument("neither --cache nor OVERLACE_PLAN_CACHE names a file, wanted one: nothing would be kept")
        .or_throw();
  check_writable("--cache", work.cache).or_throw();
  check_writable("--json", words.json).or_throw();
  std::vector<spec::OpSpec> ops;
  for (const TuneProblem& problem : work.problems) ops.push_back(problem.op);
  work.operand_bytes = operand_bytes(ops);
  work.runtime = probe_runtime(work.operand_bytes, backend);
  work.machine = words.machine;
  work.seconds = words.seconds;
  work.shows_progress = shows_progress(STDERR_FILENO, words.quiet);
  TuneResult result;
  run_thread_ranks(ranks, [&](Bootstrap& bootstrap) { return tune_rank(bootstrap, work, &result); }).or_throw();
  write_result(tune_json(result), tune_text(result), words.json).or_throw();
  return 0;
}

}  // namespace overlace::cli
