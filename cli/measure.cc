#include "cli/measure.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "src/base/statistics.h"

namespace overlace::cli {
namespace {

using base::Result;
using base::Status;

uint64_t next_random(uint64_t& state) {
  state = state * 6364136223846793005u + 1442695040888963407u;
  return state >> 33;
}

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
    const double wanted = std::ceil(options.burst_us / std::max(us, 1e-3));
    out.push_back(static_cast<int>(
        std::clamp(wanted, static_cast<double>(options.min_iterations), static_cast<double>(options.max_iterations))));
  }
  return out;
}

}  // namespace

std::vector<size_t> burst_order(size_t competitors, int repetition, uint64_t seed) {
  std::vector<size_t> order(competitors);
  std::iota(order.begin(), order.end(), size_t{0});
  uint64_t state = seed + static_cast<uint64_t>(repetition / 2) * 0x9E3779B97F4A7C15u;
  for (int warm = 0; warm < 4; ++warm) next_random(state);
  for (size_t i = competitors; i > 1; --i) std::swap(order[i - 1], order[next_random(state) % i]);
  if (repetition % 2 == 1) std::reverse(order.begin(), order.end());
  return order;
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
  for (int repetition = 0; repetition < options.repetitions; ++repetition) {
    for (size_t i : burst_order(count, repetition, options.seed)) {
      double* sample = &mine[static_cast<size_t>(repetition) * count + i];
      OVERLACE_TRY(burst(competitors[i], crew, (*iterations)[i], sample));
      if (on_step) on_step(++done, total);
    }
  }
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

}  // namespace overlace::cli
