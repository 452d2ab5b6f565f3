#include "src/gnn/parallel.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace overlace::gnn {

int thread_count(int asked) {
  return asked > 0 ? asked : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

base::Status parallel_each(int64_t count, int threads, const std::function<base::Status(int64_t i, int thread)>& work) {
  if (threads < 1) return base::invalid_argument("threads is {}, wanted at least 1", threads);
  std::atomic<int64_t> next{0}, failed_at{std::numeric_limits<int64_t>::max()};
  std::mutex mutex;
  base::Status failure;
  const auto run = [&](int thread) {
    for (int64_t i = next.fetch_add(1); i < count && i < failed_at.load(); i = next.fetch_add(1)) {
      base::Status status;
      try {
        status = work(i, thread);
      } catch (...) {
        status = base::status_of_current_exception();
      }
      if (status.ok()) continue;
      const std::lock_guard lock(mutex);
      if (i >= failed_at) continue;
      failed_at = i;
      failure = std::move(status);
    }
  };
  {
    std::vector<std::jthread> others;
    try {
      for (int t = 1; t < std::min<int64_t>(threads, count); ++t) others.emplace_back(run, t);
    } catch (const std::system_error&) {
      // The threads that there are do the rest.
    }
    run(0);
  }
  return failure;
}

}  // namespace overlace::gnn
