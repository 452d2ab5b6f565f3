#include "cli/report/timeline.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "src/base/format.h"

namespace overlace::cli {
namespace {

using base::Arrow;
using base::Span;
using base::Trace;

// Pixels; the time axis is in percent, so that the picture stretches and its text does not.
constexpr int kRankTitle = 20, kLane = 20, kLaneGap = 3, kStrip = 14, kRankGap = 14, kAxis = 24;
constexpr size_t kMaxArrows = 400, kManyArrows = 40;
// Spans below this share of the axis are joined with like neighbours: nobody can see them apart.
constexpr double kMergePercent = 0.08;
// An outline in the ground's colour parts neighbours, but would cover a thin span; only wide ones bear a name.
constexpr double kThinPercent = 0.5, kLabelPercent = 5;

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

struct LaneRow {
  std::string name;
  std::vector<const Span*> spans;
  int y = 0;  // of its top
};

struct RankRows {
  int rank = 0, y = 0, strip_y = 0;
  std::vector<LaneRow> lanes;
  Intervals exposed;
};

struct Picture {
  std::vector<RankRows> ranks;
  int height = 0;
};

/// Lanes that compute come first, then by name.
std::vector<LaneRow> lanes_of(const Trace& trace, int rank) {
  std::map<std::string, LaneRow> lanes;
  std::map<std::string, bool> computes;
  for (const Span& span : trace.spans) {
    if (span.rank != rank) continue;
    lanes[span.lane].spans.push_back(&span);
    if (is_compute(kind_of(span))) computes[span.lane] = true;
  }
  std::vector<LaneRow> rows;
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

Picture layout(const Trace& trace) {
  std::set<int> ranks;
  for (const Span& span : trace.spans) ranks.insert(span.rank);
  Picture picture;
  int y = 0;
  for (int rank : ranks) {
    RankRows rows{.rank = rank,
                  .y = y,
                  .strip_y = 0,
                  .lanes = lanes_of(trace, rank),
                  .exposed = exposed_communication(trace, rank)};
    y += kRankTitle;
    for (LaneRow& lane : rows.lanes) {
      lane.y = y;
      y += kLane + kLaneGap;
    }
    rows.strip_y = y;
    y += kStrip + kRankGap;
    picture.ranks.push_back(std::move(rows));
  }
  picture.height = y + kAxis - kRankGap;
  return picture;
}

/// Percent of the axis.
struct Scale {
  int64_t origin = 0;
  double length = 1;
  double at(int64_t ns) const { return 100 * static_cast<double>(ns - origin) / length; }
  double width(int64_t begin, int64_t end) const { return at(end) - at(begin); }
};

/// Distance of ticks: 1, 2 or 5 times a power of ten, five to ten of them.
double tick_step(double length) {
  const double power = std::pow(10, std::floor(std::log10(length / 5)));
  for (double factor : {5.0, 2.0})
    if (length / (factor * power) >= 4) return factor * power;
  return power;
}

/// Round numbers, without the zeros that duration_text keeps.
std::string tick_text(double ns) {
  if (ns < 999.5e3) return base::format("{:.4g} us", ns / 1e3);
  return ns < 999.5e6 ? base::format("{:.4g} ms", ns / 1e6) : base::format("{:.4g} s", ns / 1e9);
}

std::string amount_text(double value, std::string_view unit) {
  static constexpr std::string_view kPrefixes[] = {"", "K", "M", "G", "T", "P"};
  size_t prefix = 0;
  for (; value >= 1000 && prefix + 1 < std::size(kPrefixes); ++prefix) value /= 1000;
  return base::format("{:.3g} {}{}", value, kPrefixes[prefix], unit);
}

std::string tooltip(const Span& span, int64_t origin) {
  const double seconds = static_cast<double>(span.end_ns - span.begin_ns) * 1e-9;
  std::string text =
      base::format("{} ({}), rank {}, {}: {} from {}", span.name, span.category, span.rank, span.lane,
                   duration_text(seconds * 1e6), duration_text(static_cast<double>(span.begin_ns - origin) * 1e-3));
  if (span.bytes > 0) text += ", " + amount_text(static_cast<double>(span.bytes), "B");
  if (span.bytes > 0 && seconds > 0) text += ", " + amount_text(static_cast<double>(span.bytes) / seconds, "B/s");
  if (span.flops > 0 && seconds > 0) text += ", " + amount_text(span.flops / seconds, "FLOP/s");
  return escape_html(text);
}

/// Wide ones bear their name, clipped by their box.
void draw_span(const Span& span, const Scale& scale, int y, std::string& out) {
  const std::string_view kind = kKindNames[static_cast<size_t>(kind_of(span))];
  const double width = scale.width(span.begin_ns, span.end_ns);
  const std::string title = tooltip(span, scale.origin);
  if (width < kLabelPercent) {
    out += base::format(
        "<rect class=\"{} {}\" x=\"{:.3f}%\" y=\"{}\" width=\"{:.3f}%\" height=\"{}\"><title>{}</title></rect>",
        width < kThinPercent ? "thin" : "s", kind, scale.at(span.begin_ns), y, std::max(width, 0.05), kLane, title);
    return;
  }
  out += base::format(
      "<svg x=\"{:.3f}%\" y=\"{}\" width=\"{:.3f}%\" height=\"{}\"><title>{}</title><rect class=\"s {}\" "
      "width=\"100%\" "
      "height=\"100%\"/><text class=\"n n-{}\" x=\"5\" y=\"14\">{}</text></svg>",
      scale.at(span.begin_ns), y, width, kLane, title, kind, kind, escape_html(span.name));
}

void draw_lane(const LaneRow& lane, const Scale& scale, std::string& out) {
  out += base::format("<rect class=\"lane\" x=\"0\" y=\"{}\" width=\"100%\" height=\"{}\"/>", lane.y, kLane);
  for (size_t i = 0; i < lane.spans.size();) {
    Span joined = *lane.spans[i];
    size_t next = i + 1;
    for (; next < lane.spans.size(); ++next) {
      const Span& span = *lane.spans[next];
      const bool is_small = scale.width(span.begin_ns, span.end_ns) < kMergePercent &&
                            scale.width(lane.spans[next - 1]->begin_ns, lane.spans[next - 1]->end_ns) < kMergePercent;
      if (!is_small || span.category != joined.category || scale.width(joined.end_ns, span.begin_ns) > kMergePercent)
        break;
      joined.end_ns = std::max(joined.end_ns, span.end_ns);
      joined.bytes += span.bytes;
      joined.flops += span.flops;
    }
    if (next - i > 1) joined.name = base::format("{} and {} more", joined.name, next - i - 1);
    draw_span(joined, scale, lane.y, out);
    i = next;
  }
}

/// Middle of a lane's row; -1 where the lane shows no span.
int lane_middle(const Picture& picture, int rank, const std::string& lane) {
  for (const RankRows& rows : picture.ranks)
    for (const LaneRow& row : rows.lanes)
      if (rows.rank == rank && row.name == lane) return row.y + kLane / 2;
  return -1;
}

void draw_arrows(const Trace& trace, const Picture& picture, const Scale& scale, std::string& out) {
  if (trace.arrows.size() > kMaxArrows) return;
  const std::string_view kind = trace.arrows.size() > kManyArrows ? "arrow faint" : "arrow";
  for (const Arrow& arrow : trace.arrows) {
    const int from = lane_middle(picture, arrow.from_rank, arrow.from_lane);
    const int to = lane_middle(picture, arrow.to_rank, arrow.to_lane);
    if (from < 0 || to < 0) continue;
    // From the border of the source's row to the border of the target's, so that the bars stay readable.
    const int direction = to > from ? 1 : -1;
    out += base::format(
        "<line class=\"{}\" x1=\"{:.3f}%\" y1=\"{}\" x2=\"{:.3f}%\" y2=\"{}\" "
        "marker-end=\"url(#head)\"><title>signal {}, "
        "rank {} to rank {}, {}</title></line>",
        kind, scale.at(arrow.from_ns), from + (from == to ? 0 : direction * kLane / 2), scale.at(arrow.to_ns),
        to - (from == to ? 0 : direction * kLane / 2), escape_html(arrow.name), arrow.from_rank, arrow.to_rank,
        duration_text(static_cast<double>(arrow.to_ns - arrow.from_ns) * 1e-3));
  }
}

void draw_axis(const Scale& scale, int height, std::string& out) {
  const double step = tick_step(scale.length);
  for (int i = 0; i * step <= scale.length; ++i) {
    const double x = 100 * i * step / scale.length;
    out += base::format("<line class=\"grid\" x1=\"{:.3f}%\" y1=\"0\" x2=\"{:.3f}%\" y2=\"{}\"/>", x, x,
                        height - kAxis + 5);
    if (x > 96) continue;  // its text would be cut
    out += base::format("<text class=\"tick\" x=\"{:.3f}%\" y=\"{}\" text-anchor=\"{}\">{}</text>", x, height - 5,
                        i == 0 ? "start" : "middle", i == 0 ? "0" : tick_text(i * step));
  }
}

void draw_exposed(const RankRows& rows, const Scale& scale, std::string& out) {
  for (const Interval& interval : rows.exposed) {
    const double width = std::max(scale.width(interval.begin, interval.end), 0.1);
    out += base::format(
        "<rect class=\"exposed\" x=\"{:.3f}%\" y=\"{}\" width=\"{:.3f}%\" height=\"{}\"><title>exposed communication, "
        "rank {}: "
        "{}</title></rect>",
        scale.at(interval.begin), rows.strip_y, width, kStrip - 4, rows.rank,
        duration_text(static_cast<double>(interval.end - interval.begin) * 1e-3));
  }
}

/// From the end of this run to the end of the slower one; drawn last, its text on a ground of its own. Time is saved
/// where the overlapped run is the faster one, else it was lost.
void draw_difference(const Scale& scale, int64_t own, int64_t other, bool is_saved, int height, std::string& out) {
  if (own >= other) return;
  const std::string_view kind = is_saved ? "saved" : "lost";
  const double begin = scale.at(scale.origin + own), end = scale.at(scale.origin + other);
  const int bottom = height - kAxis, y = bottom / 2;
  out += base::format("<g class=\"{}\"><rect class=\"area\" x=\"{:.3f}%\" y=\"0\" width=\"{:.3f}%\" height=\"{}\"/>",
                      kind, begin, end - begin, bottom);
  for (double x : {begin, end})
    out += base::format("<line class=\"end\" x1=\"{:.3f}%\" y1=\"0\" x2=\"{:.3f}%\" y2=\"{}\"/>", x, x, bottom);
  out += base::format(
      "<line class=\"span-line\" x1=\"{:.3f}%\" y1=\"{}\" x2=\"{:.3f}%\" y2=\"{}\" marker-start=\"url(#{}-head)\" "
      "marker-end=\"url(#{}-head)\"/>",
      begin, y, end, y, kind, kind);
  const std::string text =
      base::format("{} {} ({:.0f} %)", duration_text(static_cast<double>(other - own) * 1e-3), kind,
                   100 * static_cast<double>(other - own) / static_cast<double>(is_saved ? other : own));
  // Beside the arrow's middle where there is room for the text, else to the left of the end.
  const bool has_room = end - begin > 22;
  out += base::format("<text class=\"difference\" x=\"{:.3f}%\" y=\"{}\" text-anchor=\"{}\">{}</text></g>",
                      has_room ? (begin + end) / 2 : end - 0.3, y - 9, has_room ? "middle" : "end", text);
}

std::string labels_svg(const Picture& picture) {
  std::string out =
      base::format("<svg class=\"labels\" width=\"104\" height=\"{}\" aria-hidden=\"true\">", picture.height);
  for (const RankRows& rows : picture.ranks) {
    out += base::format("<text class=\"rank\" x=\"0\" y=\"{}\">rank {}</text>", rows.y + 14, rows.rank);
    for (const LaneRow& lane : rows.lanes)
      out += base::format("<text class=\"lane-name\" x=\"0\" y=\"{}\">{}</text>", lane.y + 14, escape_html(lane.name));
    const int64_t exposed = total_ns(rows.exposed);
    out += base::format("<text class=\"exposed-text\" x=\"0\" y=\"{}\">exposed {}</text>", rows.strip_y + 9,
                        exposed == 0 ? "0" : duration_text(static_cast<double>(exposed) * 1e-3));
  }
  return out + "</svg>";
}

std::string timeline(const Trace& trace, bool is_overlapped, int64_t other_ns, double length) {
  const std::string_view title = is_overlapped ? "Overlapped" : "Serial";
  const Picture picture = layout(trace);
  const Scale scale{origin_ns(trace), length};
  const int64_t own = extent_ns(trace);
  int64_t exposed = 0;
  for (const RankRows& rows : picture.ranks) exposed = std::max(exposed, total_ns(rows.exposed));
  const std::string own_text = duration_text(static_cast<double>(own) * 1e-3);
  const std::string exposed_text = duration_text(static_cast<double>(exposed) * 1e-3);
  std::string out =
      base::format("<h3>{} <b>{}</b> <span class=\"aside\">exposed communication {} on the worst rank</span></h3>",
                   title, own_text, exposed == 0 ? "0" : exposed_text);
  out += "<div class=\"timeline\">" + labels_svg(picture);
  out +=
      base::format("<svg class=\"chart\" height=\"{}\" role=\"img\" aria-label=\"{} timeline, {} in all, {} ranks\">",
                   picture.height, title, own_text, picture.ranks.size());
  draw_axis(scale, picture.height, out);
  for (const RankRows& rows : picture.ranks) {
    for (const LaneRow& lane : rows.lanes) draw_lane(lane, scale, out);
    draw_exposed(rows, scale, out);
  }
  draw_arrows(trace, picture, scale, out);
  draw_difference(scale, own, other_ns, is_overlapped, picture.height, out);
  return out + "</svg></div>";
}

std::string legend(const Trace& serial, const Trace& overlapped) {
  static constexpr std::pair<std::string_view, std::string_view> kEntries[] = {
      {"gemm", "GEMM"}, {"other", "other computation"}, {"reduce", "reduction"},
      {"copy", "copy"}, {"collective", "collective"},   {"wait", "wait"}};
  std::set<std::string_view> used;
  for (const Trace* trace : {&serial, &overlapped})
    for (const Span& span : trace->spans) used.insert(kKindNames[static_cast<size_t>(kind_of(span))]);
  std::string out = "<ul class=\"legend\">";
  for (const auto& [kind, name] : kEntries)
    if (used.contains(kind))
      out += base::format(
          "<li><svg width=\"18\" height=\"12\" aria-hidden=\"true\"><rect class=\"s {}\" width=\"18\" "
          "height=\"12\"/></svg>{}</li>",
          kind, name);
  out +=
      "<li><svg width=\"18\" height=\"12\" aria-hidden=\"true\"><rect class=\"exposed\" width=\"18\" "
      "height=\"12\"/></svg>"
      "exposed: the rank communicates or waits for a peer, and computes nothing</li>";
  if (!overlapped.arrows.empty() || !serial.arrows.empty())
    out +=
        "<li><svg width=\"22\" height=\"12\" aria-hidden=\"true\"><line class=\"arrow\" x1=\"0\" y1=\"6\" x2=\"19\" "
        "y2=\"6\" "
        "marker-end=\"url(#head)\"/></svg>signal</li>";
  return out + "</ul>";
}

/// Patterns and arrow heads, shared by all pictures of the page.
constexpr std::string_view kDefinitions =
    "<svg width=\"0\" height=\"0\" class=\"defs\" aria-hidden=\"true\"><defs>"
    "<marker id=\"head\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"6\" markerHeight=\"6\" "
    "orient=\"auto-start-reverse\"><path class=\"head\" d=\"M0 0L8 4L0 8z\"/></marker>"
    "<marker id=\"saved-head\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"7\" markerHeight=\"7\" "
    "orient=\"auto-start-reverse\"><path class=\"saved-head\" d=\"M0 0L8 4L0 8z\"/></marker>"
    "<marker id=\"lost-head\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"7\" markerHeight=\"7\" "
    "orient=\"auto-start-reverse\"><path class=\"lost-head\" d=\"M0 0L8 4L0 8z\"/></marker>"
    "<pattern id=\"hatch\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(45)\">"
    "<rect class=\"hatch-back\" width=\"6\" height=\"6\"/><rect class=\"hatch-line\" width=\"2\" "
    "height=\"6\"/></pattern>"
    "<pattern id=\"stripes\" width=\"7\" height=\"7\" patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(45)\">"
    "<rect class=\"stripe-back\" width=\"7\" height=\"7\"/><rect class=\"stripe-line\" width=\"2\" "
    "height=\"7\"/></pattern>"
    "</defs></svg>";

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

std::string escape_html(std::string_view text) {
  std::string out;
  for (char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += static_cast<unsigned char>(c) < 0x20 && c != '\n' ? ' ' : c;
    }
  }
  return out;
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

std::string timelines_html(const Trace& serial, const Trace& overlapped) {
  if (serial.spans.empty() && overlapped.spans.empty()) return "<p>No timeline was recorded.</p>";
  const int64_t serial_ns = extent_ns(serial), overlapped_ns = extent_ns(overlapped);
  const double length = std::max<double>(1, 1.01 * static_cast<double>(std::max(serial_ns, overlapped_ns)));
  std::string out(kDefinitions);
  out += "<p class=\"note hint\">The picture scrolls sideways.</p>";
  out += "<div class=\"scroll\" tabindex=\"0\" role=\"group\" aria-label=\"Timelines\"><div class=\"wide\">";
  if (!serial.spans.empty()) out += timeline(serial, false, overlapped_ns, length);
  if (!overlapped.spans.empty()) out += timeline(overlapped, true, serial_ns, length);
  out += "</div></div>" + legend(serial, overlapped);
  const size_t num_arrows = std::max(serial.arrows.size(), overlapped.arrows.size());
  out +=
      "<p class=\"note\">The picture shows, of up to five recorded runs of each, the one nearest to the median; "
      "the other times of this page are medians.</p>";
  if (num_arrows > kMaxArrows)
    out += base::format("<p class=\"note\">{} signals are too many to draw; the trace file has them.</p>", num_arrows);
  return out;
}

}  // namespace overlace::cli
