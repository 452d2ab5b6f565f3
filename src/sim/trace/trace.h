// Simulated timelines as traces, and traces beside each other.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "overlace/sim.h"
#include "src/base/json.h"
#include "src/base/trace.h"

namespace overlace::sim {

/// Whole ns, as measured timelines have them.
base::Trace to_trace(const SimResult& result, const std::string& title);

/// Two traces of the same work, such as a measured and a simulated one; what only one of them has is an error. Waits
/// and what happens on links are left out: they follow from the tasks.
struct TraceDiff {
  struct Row {
    int rank = 0;
    std::string id, kind;
    int turn = 0;                                      // n-th of this id on its rank
    double start_us = 0, duration_us = 0;              // of the first trace
    double other_start_us = 0, other_duration_us = 0;  // of the second one
    double residual_us() const { return other_duration_us - duration_us; }
    double relative() const;
  };
  std::vector<Row> rows;                                         // by rank, then begin in the first trace
  std::vector<std::pair<std::string, double>> by_kind, by_rank;  // sums of |residual|, largest first
  double extent_us = 0, other_extent_us = 0;
  double median = 0;  // of |relative residual| over rows
};
/// How tasks of two traces are found to be the same: by id, or the n-th of its kind on its rank (traces of others,
/// whose names are those of kernels).
enum class Match { id, kind };
/// invalid_argument where an id (with its rank and turn) is on one side only: names the first ones.
base::Result<TraceDiff> diff_traces(const base::Trace& a, const base::Trace& b, Match match = Match::id);
std::string to_text(const TraceDiff& diff);
base::Json to_json(const TraceDiff& diff);

}  // namespace overlace::sim
