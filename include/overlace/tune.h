// Measuring what will run: the planner's best schedules, timed on the ranks of a channel, and the winners kept.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "overlace/channel.h"
#include "overlace/context.h"
#include "overlace/plan.h"
#include "overlace/schedule.h"

namespace overlace {

#pragma GCC visibility push(default)  // exported by liboverlace.so

struct TuneOptions {
  double seconds = 0;  // begins no problem after so many seconds, by rank 0's clock; 0: no limit
  /// Measures each problem for about so long, besides what its schedules take to be made and run once; 0: as long as
  /// medians need to be steady, nine bursts of 1.5 ms of each schedule.
  double problem_ms = 0;
  /// File in which rank 0 keeps what was measured for other programs (PlannerParts::cache). Empty: OVERLACE_PLAN_CACHE,
  /// and if that is empty too, only this context keeps it.
  std::string cache = {};
  /// Called on every rank before each problem, with its place and the number of problems. Must not throw.
  std::function<void(const spec::OpSpec& op, size_t place, size_t count)> on_problem = {};
};

/// A problem that was measured. Times are medians in microseconds, of the slowest rank.
struct Tuned {
  spec::OpSpec op;
  bool was_kept = false;         // measured before: found in the cache
  plan::Candidate usual, tuned;  // what Context::plan returns without measurements, and with them
  double usual_us = 0, tuned_us = 0, library_us = 0;
  std::string failure = {};  // why it was not measured; then `tuned` is `usual`, and there are no times
  double gain() const { return usual_us > 0 && tuned_us > 0 ? usual_us / tuned_us : 1; }
};

struct TuneResult {
  std::vector<Tuned> tuned;
  std::vector<spec::OpSpec> left;  // TuneOptions::seconds were over
};

/// Measures problems, after which Context::plan returns the winners on all ranks, for all rows of the same bucket
/// (exact up to 256, then eight to an octave). Collective on the channel's team, outside captures; calls before it are
/// waited for. The three best schedules of the simulator, what Context::plan takes without measurements and `library`
/// run on data of their own in bursts that take turns; `library` stays where nothing gains 2 % over it. It takes device
/// memory for one set of operands, and symmetric heap as calls of these schedules do, which the losers give up when
/// others need it. What a rank has no memory for, operands of other types than 16 and 32 bits, and teams of one rank
/// are Tuned::failure. Throws on all ranks, with the cause of one: InvalidArgument if a problem has another number of
/// ranks than the team, for bad seconds or if a stream is being captured (`capture`), PlanMismatch if the ranks' lists
/// differ, Unsupported if the machine has no costs to choose candidates by, ScheduleError if no schedule fits a
/// problem.
TuneResult tune(const Context& context, Channel& channel, const std::vector<spec::OpSpec>& problems,
                const TuneOptions& options = {});
/// Measures what the program has met: the problems for which Context::plan was asked on every rank of the team, the
/// latest first.
TuneResult tune(const Context& context, Channel& channel, const TuneOptions& options = {});

#pragma GCC visibility pop

}  // namespace overlace
