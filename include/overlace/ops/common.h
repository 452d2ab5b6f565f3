// Questions before an operator's first call: whether a schedule runs here, and how much memory it takes.
#pragma once

#include <cstddef>
#include <string>

#include "overlace/channel.h"
#include "overlace/schedule.h"

namespace overlace::ops {

#pragma GCC visibility push(default)  // exported by liboverlace.so

/// An answer. If it is no, `reason` says why in words.
struct Support {
  std::string reason{};
  bool ok() const { return reason.empty(); }
};

/// Returns whether run() on `channel` takes `schedule` for the problem `op` of this rank (op_spec of the arguments). A
/// no names what differs or is missing: a schedule made for another problem, a dtype that the backend does not
/// multiply, a task that the operator brings no body for, or a collective without an engine. Local and without waiting.
/// It does not check the memory of the arguments, nor whether heap and signal ids are free.
Support supports(const Channel& channel, const spec::OpSpec& op, const spec::Schedule& schedule);

/// Returns the bytes of local memory that the first call with `schedule` allocates on `rank` and that later calls use
/// again. Throws PlanMismatch if the schedule was made for another problem than `op`, ScheduleError if it cannot be
/// expanded.
size_t workspace_bytes(const spec::OpSpec& op, const spec::Schedule& schedule, int rank);
/// Returns the bytes of the symmetric heap that the first call with `schedule` takes on each rank; equal on all ranks.
/// If RuntimeOptions::max_heap_bytes has no room for all schedules that take turns, they share memory, and their calls
/// begin with a barrier.
size_t heap_bytes(const spec::OpSpec& op, const spec::Schedule& schedule);

#pragma GCC visibility pop

}  // namespace overlace::ops
