#include "src/gnn/parallel.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

namespace overlace::gnn {

base::Status parallel_each(int64_t count, int threads, const std::function<base::Status(int64_t i, int thread)>& work) {
  if (threads < 1) return base::invalid_argument("threads is {}, wanted at least 1", threads);
  std::vector<base::Status> results(static_cast<size_t>(count));
  std::atomic<int64_t> next = 0;
  const auto run = [&](int thread) {
    for (int64_t i = next++; i < count; i = next++) {
      try {
        results[static_cast<size_t>(i)] = work(i, thread);
      } catch (...) {
        results[static_cast<size_t>(i)] = base::status_of_current_exception();
      }
    }
  };
  {
    std::vector<std::jthread> others;
    for (int t = 1; t < std::min<int64_t>(threads, count); ++t) others.emplace_back(run, t);
    run(0);
  }
  for (base::Status& result : results) OVERLACE_TRY(std::move(result));
  return {};
}

}  // namespace overlace::gnn
