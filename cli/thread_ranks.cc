#include "cli/thread_ranks.h"

#include <sched.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "cli/run/failures.h"

namespace overlace::cli {

base::Status run_thread_ranks(int ranks, const std::function<base::Status(Bootstrap&)>& rank) {
  const auto bootstraps = thread_bootstraps(ranks);
  std::vector<base::Status> results(bootstraps.size());
  std::vector<std::thread> threads;
  for (size_t r = 0; r < bootstraps.size(); ++r) {
    threads.emplace_back([&, r] {
      try {
        results[r] = rank(*bootstraps[r]);
      } catch (...) {
        results[r] = base::status_of_current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<RankFailure> failures;
  for (size_t r = 0; r < results.size(); ++r)
    if (!results[r].ok()) failures.push_back({static_cast<int>(r), results[r]});
  const auto cause = first_cause(failures);
  return cause ? base::Status(cause->status.code(), failure_text(*cause, failures)) : base::Status();
}

void pin_to_core(size_t n) {
  cpu_set_t allowed, one;
  if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  const auto count = static_cast<size_t>(CPU_COUNT(&allowed));
  size_t left = n % std::max<size_t>(count, 1);
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &allowed) || left-- != 0) continue;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    (void)::sched_setaffinity(0, sizeof one, &one);
    return;
  }
}

}  // namespace overlace::cli
