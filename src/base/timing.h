// What all timings have in common (docs/reference/benchmarks.md): clock, order of competitors, calls of a burst.
// Benches, `overlace run`, calibration and planning differ in what they time, not in these.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "src/base/status.h"

namespace overlace::base {

/// Steady clock of this host in microseconds.
double steady_us();
inline double steady_s() { return steady_us() * 1e-6; }

/// Microseconds that `work()` takes on this thread.
template <class Work>
double us_of(Work&& work) {
  const double begin = steady_us();
  work();
  return steady_us() - begin;
}

/// Order of competitors in a repetition: a permutation drawn from the seed for each pair of repetitions, reversed in
/// the second of the pair, so that a drift hits all alike. bench/driver/protocol.py draws this order too.
std::vector<size_t> burst_order(size_t competitors, int repetition, uint64_t seed);

/// How many calls of `call_us` fill `burst_us`, from `least` to `most`; the caller rounds.
double burst_calls(double burst_us, double call_us, int least, int most);

/// Calls `burst(repetition, competitor)` for each competitor in each repetition, in burst_order; ends at the first
/// error.
template <class Burst>
Status interleave(size_t competitors, int repetitions, uint64_t seed, Burst&& burst) {
  for (int repetition = 0; repetition < repetitions; ++repetition)
    for (const size_t competitor : burst_order(competitors, repetition, seed))
      OVERLACE_TRY(burst(repetition, competitor));
  return {};
}

}  // namespace overlace::base
