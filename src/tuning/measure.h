// Times competitors side by side: interleaved bursts, maximum over ranks, median over repetitions
// (docs/reference/benchmarks.md).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "overlace/team.h"
#include "src/base/status.h"
#include "src/base/timing.h"

namespace overlace::tuning {

/// Queues `iterations` of itself. Every rank has the same list of competitors.
struct Competitor {
  std::string name;
  std::function<base::Status(int iterations)> run;
};

/// What timing needs of a rank and its team.
class Crew {
 public:
  virtual ~Crew() = default;
  /// All work that this rank queued is done.
  virtual base::Status synchronize() = 0;
  virtual base::Status barrier() = 0;
  /// Element by element the largest value of any rank, the same on all of them.
  virtual base::Result<std::vector<double>> max_over_ranks(const std::vector<double>& mine) = 0;
  /// Steady clock of this rank.
  virtual double now_us() { return base::steady_us(); }
};

/// What `work` throws, as a status.
template <class Work>
base::Status guarded(Work work) {
  try {
    work();
    return {};
  } catch (...) {
    return base::status_of_current_exception();
  }
}

/// Crew::max_over_ranks of a team.
base::Result<std::vector<double>> max_over_ranks(Team& team, const std::vector<double>& mine);

struct MeasureOptions {
  int repetitions = 7;
  double burst_us = 50000;  // wanted length of a burst
  int min_iterations = 1, max_iterations = 2000;
  uint64_t seed = 0;  // of the order
};

struct Timing {
  std::string name;
  int iterations = 0;              // of one burst
  std::vector<double> samples_us;  // per repetition: burst / iterations, maximum over ranks
  double median_us = 0;
};

/// Collective. Each competitor runs once untimed before anything is timed; a rank that fails there fails all at once,
/// but one that fails later keeps the others waiting until their timeout. `on_step(done, total)` follows every burst.
base::Result<std::vector<Timing>> measure(const std::vector<Competitor>& competitors, Crew& crew,
                                          const MeasureOptions& options,
                                          const std::function<void(int done, int total)>& on_step = {});

}  // namespace overlace::tuning
