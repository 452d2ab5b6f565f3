// In which order a rank issues a schedule, and what it sends to ranks that loads and stores do not reach, as rounds of
// matched sends and receives. Executors and simulator ask here.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "src/base/status.h"
#include "src/spec/expand.h"

namespace overlace::spec {

/// The instances of one lane, in order.
struct LaneQueue {
  Lane lane;
  std::vector<int> instances;  // indices into Expansion::instances
};
/// Transfer engines first, so that transfers start as early as possible; then sm lanes by queue.
std::vector<LaneQueue> lanes_of(const Expansion& expansion);

/// The copies and signals of one instance of `from` for one rank.
struct Message {
  int from = 0, to = 0;
  int instance = 0;                        // of `from`
  std::vector<std::pair<Box, Box>> parts;  // source at `from`, target at `to`; none is empty
  std::vector<ResolvedSet> sets;           // at `to`, once all parts are there
};

/// Messages that travel together: from one rank to another at most one with data, the last, and signals that were ready
/// before it. Listed alike on all ranks.
using Round = std::vector<Message>;

/// One of both: an index into Expansion::instances, or into Timetable::rounds.
struct Step {
  int instance = -1, round = -1;
  bool operator==(const Step&) const = default;
};

/// Where nobody waits but on the caller's stream. Deps and lanes respected: transfers as early as they can be queued,
/// then sm lanes by queue. All sm lanes share the caller's stream, so a reduction, which waits for peers, goes behind
/// every GEMM that need not wait.
std::vector<Step> issue_order(const Expansion& expansion, std::span<const LaneQueue> lanes);

/// What one rank issues, in this order.
struct Timetable {
  std::vector<Step> steps;
  std::vector<Round> rounds;  // those in which this rank sends or receives
  /// The last round of each instance's data, and of all that this rank sends or receives; -1: there is none.
  std::vector<int> last_round;
  int last_data = -1;
};

/// The steps of all ranks are parts of one order, in which whatever a step waits for comes before it: deps, lanes,
/// signals, and all sends of a round. So no rank can be stuck, even if each ran its steps one after the other. An
/// instance that sends data counts as done, for those that depend on it, when its last round is over.
/// `group`: of each rank; loads and stores reach exactly the ranks of one's own group. not_supported where something
/// other than a copy or a signal has to cross; bad_schedule where every lane waits for another one.
base::Result<Timetable> make_timetable(const Schedule& schedule, const std::vector<Expansion>& all,
                                       std::span<const int> group, int rank);

/// Whether all ranks issue by a timetable: where something waits for peers before it may go on a lane of its own, or
/// crosses to another host. No wait then holds up, in a hardware queue that lanes share, what it waits for.
bool needs_timetable(const Schedule& schedule, const Expansion& expansion, std::span<const int> group);

/// "sm 0"
std::string lane_name(const Lane& lane);
/// "arrived[3]"
std::string word_name(const Schedule& schedule, int signal, int64_t slot);
/// "arrived[0] of rank 1, credit[0] of rank 3": what `rank` receives in a round, or sends ("credit[0] to rank 3") if it
/// receives nothing.
std::string round_text(const Schedule& schedule, int rank, const Round& round);

}  // namespace overlace::spec
