#include "src/tuning/measure.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>

#include "src/base/statistics.h"
#include "src/base/timing.h"

namespace overlace::tuning {
namespace {

using base::Result;
using base::Status;

/// One burst on this rank in us per iteration, after a lead-in of a fifth.
Status burst(const Competitor& competitor, Crew& crew, int iterations, double* us) {
  if (iterations >= 5) OVERLACE_TRY(competitor.run(iterations / 5));
  OVERLACE_TRY(crew.synchronize());
  OVERLACE_TRY(crew.barrier());
  const double begin = crew.now_us();
  OVERLACE_TRY(competitor.run(iterations));
  OVERLACE_TRY(crew.synchronize());
  *us = (crew.now_us() - begin) / iterations;
  return {};
}

/// Once, untimed. What one rank alone cannot run fails on all of them, before anybody waits for it at a barrier.
Status first_run(const Competitor& competitor, Crew& crew) {
  const Status mine = competitor.run(1);
  const auto failed = crew.max_over_ranks({mine.ok() ? 0.0 : 1.0});
  if (!mine.ok()) return mine;
  if (!failed.ok()) return failed.status();
  if (failed->front() > 0) return base::error(Errc::peer_lost, "{}: another rank cannot run it", competitor.name);
  return {};
}

/// Iterations that make a burst of the wanted length, from the faster of two single ones.
Result<std::vector<int>> choose_iterations(const std::vector<Competitor>& competitors, Crew& crew,
                                           const MeasureOptions& options) {
  std::vector<double> once(competitors.size());
  for (size_t i = 0; i < competitors.size(); ++i) {
    OVERLACE_TRY(first_run(competitors[i], crew));
    double first = 0, second = 0;
    OVERLACE_TRY(burst(competitors[i], crew, 1, &first));
    OVERLACE_TRY(burst(competitors[i], crew, 1, &second));
    once[i] = std::min(first, second);
  }
  const auto slowest = crew.max_over_ranks(once);
  if (!slowest.ok()) return slowest.status();
  std::vector<int> out;
  for (double us : *slowest) {
    const double calls = base::burst_calls(options.burst_us, us, options.min_iterations, options.max_iterations);
    out.push_back(static_cast<int>(std::ceil(calls)));
  }
  return out;
}

}  // namespace

Result<std::vector<double>> max_over_ranks(Team& team, const std::vector<double>& mine) {
  constexpr size_t kAtOnce = (size_t{32} << 10) / sizeof(double);  // an exchange takes 64 KiB
  std::vector<double> out = mine;
  try {
    for (size_t first = 0; first < mine.size(); first += kAtOnce) {
      const std::span part(mine.data() + first, std::min(kAtOnce, mine.size() - first));
      for (const Bytes& theirs : team.exchange(std::as_bytes(part))) {
        if (theirs.size() != part.size_bytes())
          return base::error(Errc::desync, "a rank gave {} bytes of samples, another {}", part.size_bytes(),
                             theirs.size());
        for (size_t i = 0; i < part.size(); ++i) {
          double value = 0;
          std::memcpy(&value, theirs.data() + i * sizeof value, sizeof value);
          out[first + i] = std::max(out[first + i], value);
        }
      }
    }
  } catch (...) {
    return base::status_of_current_exception();
  }
  return out;
}

Result<std::vector<Timing>> measure(const std::vector<Competitor>& competitors, Crew& crew,
                                    const MeasureOptions& options,
                                    const std::function<void(int done, int total)>& on_step) {
  const auto iterations = choose_iterations(competitors, crew, options);
  if (!iterations.ok()) return iterations.status();
  const size_t count = competitors.size();
  const int total = options.repetitions * static_cast<int>(count);
  std::vector<double> mine(count * static_cast<size_t>(options.repetitions));
  int done = 0;
  const Status timed =
      base::interleave(count, options.repetitions, options.seed, [&](int repetition, size_t i) -> Status {
        double* sample = &mine[static_cast<size_t>(repetition) * count + i];
        OVERLACE_TRY(burst(competitors[i], crew, (*iterations)[i], sample));
        if (on_step) on_step(++done, total);
        return {};
      });
  OVERLACE_TRY(timed);
  const auto slowest = crew.max_over_ranks(mine);
  if (!slowest.ok()) return slowest.status();
  std::vector<Timing> out;
  for (size_t i = 0; i < count; ++i) {
    Timing timing;
    timing.name = competitors[i].name;
    timing.iterations = (*iterations)[i];
    for (size_t at = i; at < slowest->size(); at += count) timing.samples_us.push_back((*slowest)[at]);
    timing.median_us = base::median(timing.samples_us);
    out.push_back(std::move(timing));
  }
  return out;
}

}  // namespace overlace::tuning
