// The simulator: how long a schedule takes on a machine. The Schedule that is simulated is the one that runs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "overlace/machine.h"
#include "overlace/schedule.h"

namespace overlace::sim {

#pragma GCC visibility push(default)  // exported by liboverlace.so

/// Options of a simulation.
struct SimOptions {
  int calls = 1;                      // calls one behind the other
  uint64_t seed = 0;                  // 0: no noise; else kernels and starts vary as the machine's `noise` says
  bool has_contention = true;         // false: tasks share links and memory, but do not slow each other otherwise
  std::vector<double> start_us = {};  // by rank: delay of its start; empty: 0
  std::vector<double> slower = {};    // by rank: factor on the time of its tasks; empty: 1
  bool has_spans = false;
  bool has_parts = false;  // spans of the parts of a fused kernel too, which a device does not report
  uint64_t max_events = 100'000'000;
  double max_us = 1e9;
};

/// A task, or a part of one, on its lane.
struct SimSpan {
  int rank = 0;
  std::string lane, name, category;  // names as in the timeline of a run
  uint64_t begin_ps = 0, end_ps = 0;
  int64_t bytes = 0;
  double flops = 0;
};
/// A signal that a task waited for, from the end of the span that sent it to the begin of the span that waited.
struct SimArrow {
  std::string name;
  int from_rank = 0, to_rank = 0;
  std::string from_lane, to_lane;
  uint64_t from_ps = 0, to_ps = 0;
};

/// Bytes that passed the links and the memory of a rank, in all calls together.
struct RankBytes {
  int64_t egress = 0, ingress = 0, memory = 0;
  bool operator==(const RankBytes&) const = default;
};

/// The result of a simulation.
struct SimResult {
  uint64_t time_ps = 0;      // until the last task ends, late starts of ranks included
  double host_us = 0;        // time that the slowest thread needs to queue one call
  double bound_us = 0;       // closed form: no call is shorter, whatever the schedule's order
  double serial_us = 0;      // all tasks of all ranks one after the other, alone
  double contention_us = 0;  // time that tasks lost to contention beyond shared resources; worst rank
  uint64_t events = 0;
  std::vector<RankBytes> bytes;         // bytes that passed, by rank
  std::vector<RankBytes> static_bytes;  // sums over the schedule's regions; equal to `bytes`
  std::vector<uint64_t> call_ps;        // end of each call, worst rank
  std::vector<SimSpan> spans;
  std::vector<SimArrow> arrows;
  /// Returns the time of a call in a long row of calls, from the later half of them, or the host's time if it is
  /// longer.
  double us() const;
};

/// Simulates a schedule. Pure. Throws ScheduleError for a schedule that cannot be expanded or that ends in a deadlock
/// (the message has the circle of waits), Unsupported if a limit is reached or the machine has no numbers for a task,
/// and InvalidArgument for bad options.
SimResult simulate(const spec::Schedule& schedule, const spec::Machine& machine, const SimOptions& options = {});

#pragma GCC visibility pop

}  // namespace overlace::sim
