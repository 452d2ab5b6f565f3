#include "cli/run/oracle.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <stop_token>
#include <thread>

#include "src/model/stack.h"

namespace overlace::cli {

using base::Result;
using base::Status;

Result<std::vector<double>> oracle_in_background(const RunPlan& plan, const std::vector<float>& input, Runtime& runtime,
                                                 TeamCrew& crew, model::ExpertChoices* choices,
                                                 const std::function<void(double)>& on_share) {
  Team& team = runtime.world();
  const bool is_first = team.rank() == 0;
  std::stop_source stop;
  std::atomic<int64_t> layers_done = 0;
  std::future<Result<std::vector<double>>> work;
  if (is_first) {
    const int threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
    work = std::async(std::launch::async, [&, threads, token = stop.get_token()] {
      return model::oracle(plan.config, plan.problem, input, runtime.device(), threads, token, choices, &layers_done);
    });
  }
  constexpr auto kBeat = std::chrono::milliseconds(250);
  for (bool running = true; running;) {
    const double mine = is_first && work.wait_for(kBeat) != std::future_status::ready ? 1 : 0;
    const auto any = crew.max_over_ranks({mine});
    if (!any.ok()) {
      stop.request_stop();  // else leaving would wait for it, and nobody would hear why this rank failed
      return any.status();
    }
    running = any->front() > 0;
    if (is_first) on_share(static_cast<double>(layers_done) / static_cast<double>(plan.problem.layers));
  }
  Result<std::vector<double>> out = is_first ? work.get() : std::vector<double>{};
  OVERLACE_TRY(agree_on(team, out.ok() ? Status() : out.status()));
  return out;
}

}  // namespace overlace::cli
