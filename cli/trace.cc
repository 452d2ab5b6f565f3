#include "cli/trace.h"

#include <algorithm>
#include <map>
#include <set>

#include "cli/report_timeline.h"
#include "src/base/file.h"

namespace overlace::cli {
namespace {

using base::format;
using base::Span;
using base::Trace;

struct LaneSummary {
  size_t spans = 0;
  Intervals busy;  // waits are not work
  int64_t bytes = 0;
  double flops = 0;
};

std::string rate_text(double amount, int64_t ns, std::string_view unit) {
  if (amount <= 0 || ns <= 0) return "-";
  return format("{:.3g} {}", amount / static_cast<double>(ns), unit);  // per ns: G per s
}

std::string time_text(int64_t ns) { return duration_text(static_cast<double>(ns) * 1e-3); }

/// 0 to 100 of the whole, by length of the union of spans.
int percent_of(int64_t part, int64_t whole) {
  return whole > 0 ? static_cast<int>((100.0 * static_cast<double>(part)) / static_cast<double>(whole) + 0.5) : 0;
}

}  // namespace

std::string describe_trace(const Trace& trace) {
  const int64_t whole = extent_ns(trace);
  std::map<std::pair<int, std::string>, LaneSummary> lanes;
  std::set<int> ranks;
  for (const Span& span : trace.spans) {
    LaneSummary& lane = lanes[{span.rank, span.lane}];
    ranks.insert(span.rank);
    ++lane.spans;
    lane.bytes += span.bytes;
    lane.flops += span.flops;
    if (span.category != "wait") lane.busy.push_back({span.begin_ns, span.end_ns});
  }
  std::string out =
      format("{}{}\n", trace.title.empty() ? "(no title)" : trace.title, trace.emulated ? "  [emulated]" : "");
  out += format("{} ranks, {} lanes, {} spans, {} signals, {}\n", ranks.size(), lanes.size(), trace.spans.size(),
                trace.arrows.size(), time_text(whole));
  if (trace.spans.empty()) return out;
  out += format("\n{:<6} {:<16} {:>7} {:>10} {:>6} {:>14} {:>14}\n", "rank", "lane", "spans", "busy", "busy %", "moved",
                "computed");
  for (auto& [key, lane] : lanes) {
    const int64_t busy = total_ns(united(std::move(lane.busy)));
    out += format("{:<6} {:<16} {:>7} {:>10} {:>6} {:>14} {:>14}\n", key.first, key.second, lane.spans, time_text(busy),
                  percent_of(busy, whole), rate_text(static_cast<double>(lane.bytes), busy, "GB/s"),
                  rate_text(lane.flops, busy, "GFLOP/s"));
  }
  out += "\nexposed communication\n";
  for (int rank : ranks) {
    const int64_t exposed = total_ns(exposed_communication(trace, rank));
    out += format("{:<6} {:>10} {:>5} %\n", rank, time_text(exposed), percent_of(exposed, whole));
  }
  return out;
}

base::Result<Trace> load_trace(const std::string& path) {
  base::Result<std::string> bytes = base::read_file(path);
  if (!bytes.ok()) return bytes.status();
  return base::parse_trace(*bytes, path);
}

base::Result<std::string> trace_info(const std::string& path) {
  base::Result<Trace> trace = load_trace(path);
  if (!trace.ok()) return trace.status();
  return path + "\n" + describe_trace(*trace);
}

base::Status trace_convert(const std::string& from, const std::string& to) {
  base::Result<Trace> trace = load_trace(from);
  if (!trace.ok()) return trace.status();
  return base::write_trace(*trace, to);
}

}  // namespace overlace::cli
