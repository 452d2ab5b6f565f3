// One case of a bench: verify, warm up, interleaved bursts, verify again (docs/reference/benchmarks.md).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/common/device.h"
#include "src/base/json.h"
#include "src/base/timing.h"

namespace overlace::bench {

struct ProtocolOptions {
  int repetitions = 15;
  double burst_ms = 50;  // wanted length of a burst
  double warm_s = 1;     // least time of warming up
  double settle_s = 5;   // most time that the clocks get to settle besides
  int least_calls = 20, most_calls = 2000;
  uint64_t seed = 1;
  bool verify_only = false;
};

/// A competitor and what became of it.
struct Entrant {
  std::string name;
  std::string status = "ok";  // ok wrong absent unsupported
  std::string reason{};
  bool has_output = true;  // false: nothing to verify (a part, such as the GEMM alone)
  bool same_bits = false;
  Check before{}, after{};
  int calls = 0;                      // of a burst
  std::vector<double> samples_us{};   // by repetition: burst / calls, maximum over ranks
  std::vector<double> host_us{};      // to queue one call, maximum over ranks
  std::vector<ClockSample> clocks{};  // of this rank's device after each burst
  bool is_timed() const { return !samples_us.empty(); }
};

/// The calls of one case. All ranks have the same entrants in the same order.
class Subject {
 public:
  virtual ~Subject() = default;
  /// Queues one call of entrant `which` on operand set `turn` modulo the number of sets.
  virtual base::Status enqueue(size_t which, int turn) = 0;
  /// enqueue queues so many calls, those of its turn and the turns behind it, where the turn is a multiple of this, and
  /// else nothing.
  virtual int calls_per_launch() const { return 1; }
  /// Runs `which` once on poisoned output and says what is wrong with it, the same on all ranks; empty: right. Fills
  /// *check.
  virtual base::Result<std::string> verify(size_t which, Check* check) = 0;
};

/// What timing needs of a rank and its team.
class Crew {
 public:
  virtual ~Crew() = default;
  virtual base::Status synchronize() = 0;
  virtual base::Status barrier() = 0;
  virtual base::Result<double> max_over_ranks(double mine) = 0;
  virtual base::Status record_begin() = 0;
  virtual base::Status record_end() = 0;
  virtual base::Result<double> elapsed_us() = 0;
  virtual ClockSample clocks() = 0;
  virtual double now_s() { return base::steady_s(); }
};

struct Outcome {
  bool unsettled = false;
  int wrong = 0;  // entrants that were refused
};

/// Collective. A wrong entrant is named and not timed; one that is wrong only afterwards loses its samples.
base::Result<Outcome> run_case(std::vector<Entrant>* entrants, Subject& subject, Crew& crew,
                               const ProtocolOptions& options);

/// Median, least and most of SM clock, memory clock, power and temperature, and all throttle reasons.
base::Json clocks_json(const std::vector<ClockSample>& samples);

}  // namespace overlace::bench
