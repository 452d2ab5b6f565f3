// Timelines of two runs of the same work as SVG, one below the other on one time scale.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

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

/// Escaped for HTML and SVG text and attributes; control characters but ends of lines are blanks.
std::string escape_html(std::string_view text);
/// "873 us", "12.4 ms", "1.25 s"
std::string duration_text(double us);

/// Both timelines, the saved time marked in the second one, and the legend. Empty traces give a sentence instead.
std::string timelines_html(const base::Trace& serial, const base::Trace& overlapped);

}  // namespace overlace::cli
