#include "cli/run/run.h"

#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <thread>

#include "cli/run/failures.h"
#include "cli/run/launch.h"
#include "cli/run/memory.h"
#include "cli/run/plan.h"
#include "cli/run/rank.h"
#include "cli/run/started.h"

namespace overlace::cli {
namespace {

using base::Result;
using base::Status;

int exit_of(const Status& status) {
  std::fprintf(stderr, "overlace: error: %s\n", status.message().c_str());
  return exit_code(status.code());
}

/// Our launcher words the failures of all its ranks.
bool tell_launcher(const RunOptions& options, const RankFailure& failure) {
  const std::string record = encode_failure(failure);
  return ::write(options.error_fd, record.data(), record.size()) == static_cast<ssize_t>(record.size());
}

int exit_of_threads(const std::vector<Result<bool>>& results) {
  std::vector<RankFailure> failures;
  for (size_t rank = 0; rank < results.size(); ++rank) {
    if (!results[rank].ok()) failures.push_back({static_cast<int>(rank), results[rank].status()});
  }
  if (const auto cause = first_cause(failures)) {
    return exit_of(Status(cause->status.code(), failure_text(*cause, failures)));
  }
  return *results.front() ? 0 : kExitWrong;
}

int run_as_threads(const RunOptions& options, const RunPlan& plan) {
  auto bootstraps = thread_bootstraps(plan.ranks);
  std::vector<Result<bool>> results(bootstraps.size(), Result<bool>(false));
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < bootstraps.size(); ++rank) {
    threads.emplace_back([&, rank] { results[rank] = run_rank(options, plan, *bootstraps[rank]); });
  }
  for (std::thread& thread : threads) thread.join();
  return exit_of_threads(results);
}

/// A rank of our launcher, which has checked the plan.
int run_as_rank(const RunOptions& options, const base::Env& env, const Surroundings& around) {
  const auto result = [&]() -> Result<bool> {
    try {
      const auto plan = make_plan(options, env, around);
      if (!plan.ok()) return plan.status();
      const auto bootstrap = environment_bootstrap();
      return run_rank(options, *plan, *bootstrap);
    } catch (...) {
      return base::status_of_current_exception();
    }
  }();
  if (result.ok()) return *result ? 0 : kExitWrong;
  const RankFailure failure{around.rank, result.status()};
  if (tell_launcher(options, failure)) return exit_code(failure.status.code());
  return exit_of(Status(failure.status.code(), failure_text(failure, {failure})));
}

}  // namespace

int run(const RunOptions& given) {
  const base::Env& env = base::env();
  RunOptions options = given;
  if (options.trace.empty()) options.trace = env.trace;
  const bool is_rank = env.rank >= 0 || env.world_size >= 0;
  if (!options.program.empty() && !is_rank) return launch_program(options);
  ::signal(SIGPIPE, SIG_IGN);  // a reader that left is an error of a write, not the end of a rank
  const Surroundings around = look_around(env);
  if (options.error_fd >= 0) return run_as_rank(options, env, around);
  if (is_rank) {
    const Status status = check_started(options, env, around);
    return status.ok() ? run_started(options, env, around) : exit_of(status);
  }
  const auto plan = make_plan(options, env, around);
  const Status status = plan.ok() ? check_memory(*plan, host_memory()) : plan.status();
  if (!status.ok()) return exit_of(status);
  if (options.threads || plan->ranks == 1) return run_as_threads(options, *plan);
  return plan->hosts > 1 ? launch_hosts(*plan) : launch_ranks(*plan);
}

}  // namespace overlace::cli
