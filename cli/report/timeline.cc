#include "cli/report/timeline.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "cli/report/page.h"
#include "src/base/format.h"

namespace overlace::cli {
namespace {

using base::Arrow;
using base::Json;
using base::Span;
using base::Trace;

constexpr size_t kMaxArrows = 400;
// Spans below this share of the axis are joined with like neighbours: nobody can see them apart.
constexpr double kMergePercent = 0.08;

enum class Kind { gemm, other, reduce, copy, collective, wait };

constexpr std::string_view kKindNames[] = {"gemm", "other", "reduce", "copy", "collective", "wait"};

Kind kind_of(const Span& span) {
  for (size_t i = 0; i < std::size(kKindNames); ++i)
    if (span.category == kKindNames[i]) return static_cast<Kind>(i);
  return Kind::other;
}

bool is_compute(Kind kind) { return kind == Kind::gemm || kind == Kind::other || kind == Kind::reduce; }
bool is_communication(Kind kind) { return kind == Kind::copy || kind == Kind::collective; }

/// What of `from` is not in `taken`; both sorted and disjoint.
Intervals subtract(const Intervals& from, const Intervals& taken) {
  Intervals rest;
  size_t first = 0;
  for (Interval left : from) {
    while (first < taken.size() && taken[first].end <= left.begin) ++first;
    for (size_t i = first; i < taken.size() && taken[i].begin < left.end; ++i) {
      if (taken[i].begin > left.begin) rest.push_back({left.begin, taken[i].begin});
      left.begin = std::max(left.begin, taken[i].end);
    }
    if (left.begin < left.end) rest.push_back(left);
  }
  return rest;
}

int64_t origin_ns(const Trace& trace) {
  int64_t origin = trace.spans.empty() ? 0 : trace.spans.front().begin_ns;
  for (const Span& span : trace.spans) origin = std::min(origin, span.begin_ns);
  return origin;
}

/// Spans of one lane in order of time.
struct Lane {
  std::string name;
  std::vector<const Span*> spans;
};

/// Lanes that compute come first, then by name.
std::vector<Lane> lanes_of(const Trace& trace, int rank) {
  std::map<std::string, Lane> lanes;
  std::set<std::string> computes;
  for (const Span& span : trace.spans) {
    if (span.rank != rank) continue;
    lanes[span.lane].spans.push_back(&span);
    if (is_compute(kind_of(span))) computes.insert(span.lane);
  }
  std::vector<Lane> rows;
  for (bool want : {true, false}) {
    for (auto& [name, row] : lanes) {
      if (computes.contains(name) != want) continue;
      row.name = name;
      std::stable_sort(row.spans.begin(), row.spans.end(),
                       [](const Span* a, const Span* b) { return a->begin_ns < b->begin_ns; });
      rows.push_back(std::move(row));
    }
  }
  return rows;
}

std::string ns_text(int64_t ns) { return duration_text(static_cast<double>(ns) * 1e-3); }
std::string exposed_text(int64_t ns) { return ns == 0 ? "0" : ns_text(ns); }

std::string amount_text(double value, std::string_view unit) {
  static constexpr std::string_view kPrefixes[] = {"", "K", "M", "G", "T", "P"};
  size_t prefix = 0;
  for (; value >= 1000 && prefix + 1 < std::size(kPrefixes); ++prefix) value /= 1000;
  return base::format("{:.3g} {}{}", value, kPrefixes[prefix], unit);
}

std::string tooltip(const Span& span, int64_t origin) {
  const double seconds = static_cast<double>(span.end_ns - span.begin_ns) * 1e-9;
  std::string text = base::format("{} ({}), rank {}, {}: {} from {}", span.name, span.category, span.rank, span.lane,
                                  ns_text(span.end_ns - span.begin_ns), ns_text(span.begin_ns - origin));
  if (span.bytes > 0) text += ", " + amount_text(static_cast<double>(span.bytes), "B");
  if (span.bytes > 0 && seconds > 0) text += ", " + amount_text(static_cast<double>(span.bytes) / seconds, "B/s");
  if (span.flops > 0 && seconds > 0) text += ", " + amount_text(span.flops / seconds, "FLOP/s");
  return text;
}

/// Begin and end count in nanoseconds from the begin of the run.
Json timed(int64_t begin, int64_t end, Json::Object more) {
  Json::Object out = {{"begin", begin}, {"end", end}};
  for (auto& member : more) out.push_back(std::move(member));
  return out;
}

/// Small neighbours of one kind become one span.
Json lane_data(const Lane& lane, int64_t origin, double length) {
  const auto is_small = [&](int64_t begin, int64_t end) {
    return 100 * static_cast<double>(end - begin) / length < kMergePercent;
  };
  Json spans = Json::array();
  for (size_t i = 0; i < lane.spans.size();) {
    Span joined = *lane.spans[i];
    size_t next = i + 1;
    for (; next < lane.spans.size(); ++next) {
      const Span &span = *lane.spans[next], &last = *lane.spans[next - 1];
      if (!is_small(span.begin_ns, span.end_ns) || !is_small(last.begin_ns, last.end_ns) ||
          span.category != joined.category ||
          100 * static_cast<double>(span.begin_ns - joined.end_ns) / length > kMergePercent)
        break;
      joined.end_ns = std::max(joined.end_ns, span.end_ns);
      joined.bytes += span.bytes;
      joined.flops += span.flops;
    }
    if (next - i > 1) joined.name = base::format("{} and {} more", joined.name, next - i - 1);
    spans.push_back(timed(joined.begin_ns - origin, joined.end_ns - origin,
                          {{"kind", kKindNames[static_cast<size_t>(kind_of(joined))]},
                           {"name", joined.name},
                           {"title", tooltip(joined, origin)}}));
    i = next;
  }
  return Json::Object{{"name", lane.name}, {"spans", std::move(spans)}};
}

Json rank_data(const Trace& trace, int rank, double length) {
  const int64_t origin = origin_ns(trace);
  Json lanes = Json::array(), exposed = Json::array();
  for (const Lane& lane : lanes_of(trace, rank)) lanes.push_back(lane_data(lane, origin, length));
  const Intervals intervals = exposed_communication(trace, rank);
  for (const Interval& one : intervals) {
    const std::string title = base::format("exposed communication, rank {}: {}", rank, ns_text(one.end - one.begin));
    exposed.push_back(timed(one.begin - origin, one.end - origin, {{"title", title}}));
  }
  return Json::Object{{"rank", rank},
                      {"exposed", exposed_text(total_ns(intervals))},
                      {"lanes", std::move(lanes)},
                      {"exposed_spans", std::move(exposed)}};
}

Json arrows_data(const Trace& trace) {
  Json arrows = Json::array();
  if (trace.arrows.size() > kMaxArrows) return arrows;
  const int64_t origin = origin_ns(trace);
  for (const Arrow& arrow : trace.arrows) {
    const std::string title = base::format("signal {}, rank {} to rank {}, {}", arrow.name, arrow.from_rank,
                                           arrow.to_rank, ns_text(arrow.to_ns - arrow.from_ns));
    arrows.push_back(timed(arrow.from_ns - origin, arrow.to_ns - origin,
                           {{"from", base::format("{} {}", arrow.from_rank, arrow.from_lane)},
                            {"to", base::format("{} {}", arrow.to_rank, arrow.to_lane)},
                            {"title", title}}));
  }
  return arrows;
}

/// From the end of this run to the end of the slower one. Time is saved where the overlapped run is the faster one,
/// else it was lost.
Json difference_data(int64_t own, int64_t other, bool is_overlapped) {
  if (own >= other) return {};
  const std::string_view kind = is_overlapped ? "saved" : "lost";
  const double share = static_cast<double>(other - own) / static_cast<double>(is_overlapped ? other : own);
  return timed(own, other,
               {{"kind", kind}, {"text", base::format("{} {} ({:.0f} %)", ns_text(other - own), kind, 100 * share)}});
}

Json run_data(const Trace& trace, bool is_overlapped, int64_t other_ns, double length) {
  std::set<int> numbers;
  for (const Span& span : trace.spans) numbers.insert(span.rank);
  Json ranks = Json::array();
  int64_t exposed = 0;
  for (const int rank : numbers) {
    ranks.push_back(rank_data(trace, rank, length));
    exposed = std::max(exposed, total_ns(exposed_communication(trace, rank)));
  }
  return Json::Object{{"title", is_overlapped ? "Overlapped" : "Serial"},
                      {"total", ns_text(extent_ns(trace))},
                      {"exposed", exposed_text(exposed)},
                      {"ranks", std::move(ranks)},
                      {"arrows", arrows_data(trace)},
                      {"difference", difference_data(extent_ns(trace), other_ns, is_overlapped)}};
}

Json legend_data(const Trace& serial, const Trace& overlapped) {
  static constexpr std::string_view kTexts[] = {"GEMM", "other computation", "reduction", "copy", "collective", "wait"};
  std::set<Kind> used;
  for (const Trace* trace : {&serial, &overlapped})
    for (const Span& span : trace->spans) used.insert(kind_of(span));
  Json entries = Json::array();
  const auto add = [&](std::string_view kind, std::string_view text) {
    entries.push_back(Json::Object{{"kind", kind}, {"text", text}});
  };
  for (const Kind kind : used) add(kKindNames[static_cast<size_t>(kind)], kTexts[static_cast<size_t>(kind)]);
  add("exposed", "exposed: the rank communicates or waits for a peer, and computes nothing");
  if (!overlapped.arrows.empty() || !serial.arrows.empty()) add("signal", "signal");
  return entries;
}

}  // namespace

Intervals exposed_communication(const Trace& trace, int rank) {
  // Ends of peers' lanes at which an arrow to this rank starts: the span that ends there moved our data.
  std::set<std::tuple<int, std::string, int64_t>> arrivals;
  for (const Arrow& arrow : trace.arrows)
    if (arrow.to_rank == rank && arrow.from_rank != rank)
      arrivals.insert({arrow.from_rank, arrow.from_lane, arrow.from_ns});
  const std::string link_end = base::format("->{}", rank);
  Intervals computing, communicating;
  for (const Span& span : trace.spans) {
    const Kind kind = kind_of(span);
    const bool is_own = span.rank == rank;
    const bool is_arriving = is_communication(kind) &&
                             (span.lane.ends_with(link_end) || arrivals.contains({span.rank, span.lane, span.end_ns}));
    if (is_own && is_compute(kind)) computing.push_back({span.begin_ns, span.end_ns});
    if (is_arriving || (is_own && !is_compute(kind))) communicating.push_back({span.begin_ns, span.end_ns});
  }
  return subtract(united(std::move(communicating)), united(std::move(computing)));
}

Intervals united(Intervals all) {
  std::erase_if(all, [](const Interval& i) { return i.end <= i.begin; });
  std::sort(all.begin(), all.end(), [](const Interval& a, const Interval& b) { return a.begin < b.begin; });
  Intervals joined;
  for (const Interval& next : all) {
    if (!joined.empty() && next.begin <= joined.back().end)
      joined.back().end = std::max(joined.back().end, next.end);
    else
      joined.push_back(next);
  }
  return joined;
}

int64_t total_ns(const Intervals& intervals) {
  int64_t total = 0;
  for (const Interval& interval : intervals) total += interval.end - interval.begin;
  return total;
}

int64_t extent_ns(const Trace& trace) {
  int64_t end = origin_ns(trace);
  for (const Span& span : trace.spans) end = std::max(end, span.end_ns);
  return end - origin_ns(trace);
}

size_t most_typical(const std::vector<Trace>& traces, double us) {
  const auto apart = [us](const Trace& trace) { return std::abs(static_cast<double>(extent_ns(trace)) * 1e-3 - us); };
  const auto nearest = std::min_element(traces.begin(), traces.end(),
                                        [&](const Trace& a, const Trace& b) { return apart(a) < apart(b); });
  return static_cast<size_t>(nearest - traces.begin());
}

std::string duration_text(double us) {
  const double size = std::abs(us);
  if (!(size < 1e12)) return "n/a";
  const auto [value, unit] = size < 999.5     ? std::pair(us, "us")
                             : size < 999.5e3 ? std::pair(us / 1e3, "ms")
                                              : std::pair(us / 1e6, "s");
  const int decimals = std::abs(value) < 9.995 ? 2 : std::abs(value) < 99.95 ? 1 : 0;
  return decimals == 2   ? base::format("{:.2f} {}", value, unit)
         : decimals == 1 ? base::format("{:.1f} {}", value, unit)
                         : base::format("{:.0f} {}", value, unit);
}

Json timeline_parts(const Trace& serial, const Trace& overlapped) {
  if (serial.spans.empty() && overlapped.spans.empty()) return Json::Array{note_part("No timeline was recorded.")};
  const int64_t serial_ns = extent_ns(serial), overlapped_ns = extent_ns(overlapped);
  const double length = std::max<double>(1, 1.01 * static_cast<double>(std::max(serial_ns, overlapped_ns)));
  Json runs = Json::array();
  if (!serial.spans.empty()) runs.push_back(run_data(serial, false, overlapped_ns, length));
  if (!overlapped.spans.empty()) runs.push_back(run_data(overlapped, true, serial_ns, length));
  Json parts = Json::Array{Json::Object{{"part", "timelines"},
                                        {"length", length},
                                        {"runs", std::move(runs)},
                                        {"legend", legend_data(serial, overlapped)}}};
  parts.push_back(note_part(
      "The picture shows, of up to five recorded runs of each, the one nearest to the median; the other times "
      "of this page are medians."));
  const size_t num_arrows = std::max(serial.arrows.size(), overlapped.arrows.size());
  if (num_arrows > kMaxArrows)
    parts.push_back(note_part(base::format("{} signals are too many to draw; the trace file has them.", num_arrows)));
  return parts;
}

}  // namespace overlace::cli
