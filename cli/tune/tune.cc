#include "cli/tune/tune.h"

#include <unistd.h>

#include "cli/progress.h"
#include "cli/run/outputs.h"
#include "cli/thread_ranks.h"
#include "overlace/context.h"
#include "overlace/error.h"
#include "src/base/env.h"
#include "src/base/format.h"
#include "src/base/half.h"
#include "src/base/timing.h"
#include "src/runtime/backend.h"

namespace overlace::cli {
namespace {

using base::Status;

constexpr int kMostRanks = 64;
constexpr double kMostSeconds = 1e6;

struct Work {
  std::vector<TuneProblem> problems;
  RuntimeOptions runtime;
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

/// One rank; the first one's result counts.
Status tune_rank(Bootstrap& bootstrap, const Work& work, TuneReport* out) {
  const double begin = base::steady_s();
  RuntimeOptions options = work.runtime;
  if (options.backend == Backend::cuda_peer) options.device = bootstrap.rank();
  Runtime runtime = Runtime::open(bootstrap, options);
  const bool is_gpu = runtime.backend() == Backend::cuda_peer;
  if (!is_gpu) pin_to_core(static_cast<size_t>(bootstrap.rank()));
  Channel& channel = runtime.world().channel(is_gpu ? StreamRef::cuda(nullptr) : StreamRef::cpu());
  const Context context = Context::open(runtime, {.machine = work.machine});
  Progress progress(stderr, work.shows_progress && bootstrap.rank() == 0, static_cast<double>(work.problems.size()));
  std::vector<spec::OpSpec> ops;
  for (const TuneProblem& problem : work.problems) ops.push_back(problem.op);
  TuneResult result = overlace::tune(
      context, channel, ops,
      {.seconds = work.seconds, .cache = work.cache, .on_problem = [&](const spec::OpSpec& op, size_t, size_t) {
         progress.begin(op.to_string(), 1);
       }});
  progress.clear();
  runtime.close();
  for (const Tuned& one : result.tuned)
    if (!one.failure.empty())
      return base::error(Errc::internal, "tune: {} was not measured: {}", one.op.to_string(), one.failure);
  if (bootstrap.rank() == 0)
    *out = {context.machine().name,   context.machine_origin(), work.cache,
            base::steady_s() - begin, std::move(result),        work.problems};
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
  work.runtime = RuntimeOptions::from_environment();
  work.runtime.backend = backend;
  work.machine = words.machine;
  work.seconds = words.seconds;
  work.shows_progress = shows_progress(STDERR_FILENO, words.quiet);
  TuneReport report;
  run_thread_ranks(ranks, [&](Bootstrap& bootstrap) { return tune_rank(bootstrap, work, &report); }).or_throw();
  write_result(tune_json(report), tune_text(report), words.json).or_throw();
  return 0;
}

}  // namespace overlace::cli
