// Timelines of two runs of one piece of work, one below the other on one time scale.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/json.h"
#include "src/base/trace.h"

namespace overlace::cli {

struct Interval {
  int64_t begin = 0, end = 0;
};
/// Sorted, disjoint, not empty.
using Intervals = std::vector<Interval>;

/// When `rank` communicates while none of its lanes computes: communication that costs time. It communicates during its
/// own copies, collectives and waits for peers, during copies of peers that end in an arrow to it, and while a link to
/// it is busy (a lane "link 0->1").
Intervals exposed_communication(const base::Trace& trace, int rank);
/// Sorts and joins.
Intervals united(Intervals intervals);
int64_t total_ns(const Intervals& intervals);

/// First begin to last end; 0 for an empty trace.
int64_t extent_ns(const base::Trace& trace);
/// Index of the trace whose extent is nearest to `us`, the first of equals; wants at least one.
size_t most_typical(const std::vector<base::Trace>& traces, double us);

/// "873 us", "12.4 ms", "1.25 s"
std::string duration_text(double us);

/// The parts of a page's section (cli/report/page.h): both timelines, the saved time marked in the second one, the
/// legend and notes. Empty traces give a sentence instead.
base::Json timeline_parts(const base::Trace& serial, const base::Trace& overlapped);

}  // namespace overlace::cli
