// What can be asked before an operator's first call: does this schedule run here, and how much memory does it take.
#pragma once

#include <cstddef>
#include <string>

#include "overlace/channel.h"
#include "overlace/schedule.h"

namespace overlace::ops {

#pragma GCC visibility push(default)  // exported by liboverlace.so

/// The answer, with the reason in words where it is no.
struct Support {
  std::string reason{};
  bool ok() const { return reason.empty(); }
};

/// Whether run() on `channel` takes `schedule` for the problem `op` of this rank (op_spec of the arguments). A no names
/// what differs or is missing: a schedule made for another problem, a dtype that the backend does not multiply, a task
/// that the operator brings no body for, a collective without an engine. Local, does not wait; the arguments' memory is
/// checked by run() alone. Not answered here: whether heap and signal ids are free.
Support supports(const Channel& channel, const spec::OpSpec& op, const spec::Schedule& schedule);

/// Returns the bytes of local memory that the first call with `schedule` allocates on `rank` and later ones use again.
/// Throws PlanMismatch where the schedule was made for another problem than `op`, ScheduleError where it cannot be
/// expanded.
size_t workspace_bytes(const spec::OpSpec& op, const spec::Schedule& schedule, int rank);
/// Returns the bytes of the symmetric heap that the first call with `schedule` takes on each rank; equal on all ranks.
/// Where RuntimeOptions::max_heap_bytes has no room for all schedules that take turns, they share memory, and their
/// calls begin with a barrier.
size_t heap_bytes(const spec::OpSpec& op, const spec::Schedule& schedule);

#pragma GCC visibility pop

}  // namespace overlace::ops
