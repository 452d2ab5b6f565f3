// A step of training or inference over many ranks: tasks on lanes, and transfers that begin when all their members have
// come. What a task takes alone is given; tasks of one rank slow each other as the machine's contention says.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "overlace/machine.h"
#include "src/base/status.h"
#include "src/base/trace.h"
#include "src/sim/engine/engine.h"

namespace overlace::study {

/// Lanes of each rank, unless the step names its own: what computes, its scale-up and its scale-out communication.
inline constexpr int kComputeLane = 0, kLocalLane = 1, kNetLane = 2;
inline constexpr int kNoGroup = -1;
/// What keeps a run to seconds, and its times to what 64 bits of picoseconds hold.
inline constexpr int64_t kMostTasks = int64_t{1} << 22;
inline constexpr double kMostSumUs = 1e13;  // 115 days

struct StepTask {
  std::string name;
  int rank = 0, lane = kComputeLane;
  double us = 0;         // alone
  int group = kNoGroup;  // tasks of a group begin together
  spec::Load load = spec::Load::gemm_tensor;
  int64_t bytes = 0;
  double flops = 0;
  bool is_apart = false;       // works in the host's memory: slows nothing on the rank, and is not slowed
  const char* kind = nullptr;  // category of its span; null: gemm or other where it computes, else collective
};

struct StepTime {
  double us = 0;                      // to the last end
  double compute_us = 0;              // of the rank that computes longest
  double bound_us = 0;                // no order is shorter: the longest lane, the longest chain of dependences
  double serial_us = 0;               // of the rank for which all its tasks one after the other take longest
  double lost_us = 0;                 // to contention; worst rank
  std::vector<sim::Time> begin, end;  // by task
  double exposed_us() const { return us - compute_us; }
};

class Step {
 public:
  /// `lanes`: names of the lanes of each rank; the first is what computes.
  explicit Step(int ranks, std::vector<std::string> lanes = {"compute", "local", "net"})
      : ranks_(ranks), lanes_(std::move(lanes)), last_(static_cast<size_t>(ranks) * lanes_.size(), -1) {}

  /// On its lane behind what was added to that lane before, and behind `after`. Returns its number.
  int add(StepTask task, std::span<const int> after = {});
  int add(StepTask task, std::initializer_list<int> after) { return add(std::move(task), std::span(after)); }
  int new_group() { return groups_++; }

  /// Errc::invalid_argument for a time that is negative or none, and for times whose sum, slowed as far as the
  /// contention can, is above kMostSumUs; bad_schedule where groups wait for each other in a circle: the message has a
  /// task that never begins.
  base::Result<StepTime> run(std::span<const spec::Contention> contention = {}) const;
  /// The step as a timeline; arrows along the dependences between lanes.
  base::Trace to_trace(const StepTime& time, const std::string& title) const;

 private:
  base::Status check_times(std::span<const spec::Contention> contention) const;
  size_t place(const StepTask& task) const {
    return static_cast<size_t>(task.rank) * lanes_.size() + static_cast<size_t>(task.lane);
  }
  int ranks_;
  int groups_ = 0;
  std::vector<std::string> lanes_;
  std::vector<StepTask> tasks_;
  std::vector<int> last_;                   // by rank and lane
  std::vector<std::pair<int, int>> edges_;  // from, to
};

}  // namespace overlace::study
