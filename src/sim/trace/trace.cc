#include "src/sim/trace/trace.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "src/base/statistics.h"
#include "src/sim/engine/engine.h"

namespace overlace::sim {
namespace {

using base::Span;
using base::Trace;

int64_t ns_of(Time ps) { return static_cast<int64_t>((ps + kPsPerNs / 2) / kPsPerNs); }
double us_of_ns(int64_t ns) { return static_cast<double>(ns) * 1e-3; }

using Key = std::tuple<int, std::string, int>;  // rank, id, turn

bool is_work(const Span& span) { return span.category != "wait" && !span.lane.starts_with("link "); }

std::map<Key, const Span*> by_key(const Trace& trace, Match match) {
  std::vector<const Span*> spans;
  for (const Span& span : trace.spans) {
    if (is_work(span)) spans.push_back(&span);
  }
  std::stable_sort(spans.begin(), spans.end(), [](const Span* a, const Span* b) { return a->begin_ns < b->begin_ns; });
  std::map<std::pair<int, std::string>, int> turns;
  std::map<Key, const Span*> out;
  for (const Span* span : spans) {
    const std::string& name = match == Match::id ? span->name : span->category;
    out[{span->rank, name, turns[{span->rank, name}]++}] = span;
  }
  return out;
}

std::string name_of(const Key& key) {
  const int turn = std::get<2>(key);
  return base::format("{}{} of rank {}", std::get<1>(key), turn == 0 ? "" : base::format(" (turn {})", turn + 1),
                      std::get<0>(key));
}

std::pair<int64_t, int64_t> extent_of(const std::map<Key, const Span*>& spans) {
  int64_t begin = 0, end = 0;
  bool is_first = true;
  for (const auto& [key, span] : spans) {
    begin = is_first ? span->begin_ns : std::min(begin, span->begin_ns);
    end = is_first ? span->end_ns : std::max(end, span->end_ns);
    is_first = false;
  }
  return {begin, end};
}

std::vector<std::pair<std::string, double>> sorted_sums(const std::map<std::string, double>& sums) {
  std::vector<std::pair<std::string, double>> out(sums.begin(), sums.end());
  std::stable_sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  return out;
}

}  // namespace

Trace to_trace(const SimResult& result, const std::string& title) {
  Trace trace;
  trace.title = title;
  for (const SimSpan& s : result.spans) {
    trace.spans.push_back({s.rank, s.lane, s.name, s.category, ns_of(s.begin_ps), ns_of(s.end_ps), s.bytes, s.flops});
  }
  for (const SimArrow& a : result.arrows)
    trace.arrows.push_back({a.name, a.from_rank, a.from_lane, ns_of(a.from_ps), a.to_rank, a.to_lane, ns_of(a.to_ps)});
  return trace;
}

double TraceDiff::Row::relative() const {
  if (duration_us > 0) return residual_us() / duration_us;
  return other_duration_us > 0 ? 1 : 0;
}

base::Result<TraceDiff> diff_traces(const Trace& a, const Trace& b, Match match) {
  const auto left = by_key(a, match), right = by_key(b, match);
  std::string missing;
  int num_missing = 0;
  const auto look = [&](const auto& from, const auto& in, const char* side) {
    for (const auto& [key, span] : from) {
      if (in.count(key) != 0) continue;
      if (++num_missing <= 3)
        missing += base::format("{}{} is in the {} trace only", missing.empty() ? "" : "; ", name_of(key), side);
    }
  };
  look(left, right, "first");
  look(right, left, "second");
  if (num_missing > 0) {
    const bool is_id = match == Match::id;
    return base::invalid_argument("traces: {} {} on one side only, wanted {}: {}", num_missing,
                                  is_id ? "ids are" : "tasks of a kind are",
                                  is_id ? "the same work" : "as many of each kind on a rank", missing);
  }
  if (left.empty()) return base::invalid_argument("traces: no task in either, wanted two of the same work");
  TraceDiff out;
  const auto [begin, end] = extent_of(left);
  const auto [other_begin, other_end] = extent_of(right);
  out.extent_us = us_of_ns(end - begin);
  out.other_extent_us = us_of_ns(other_end - other_begin);
  std::map<std::string, double> kinds, ranks;
  std::vector<double> relative;
  for (const auto& [key, span] : left) {
    const Span& other = *right.at(key);
    out.rows.push_back({std::get<0>(key), std::get<1>(key), span->category, std::get<2>(key),
                        us_of_ns(span->begin_ns - begin), us_of_ns(span->end_ns - span->begin_ns),
                        us_of_ns(other.begin_ns - other_begin), us_of_ns(other.end_ns - other.begin_ns)});
    const TraceDiff::Row& row = out.rows.back();
    kinds[row.kind] += std::abs(row.residual_us());
    ranks[base::format("rank {}", row.rank)] += std::abs(row.residual_us());
    relative.push_back(std::abs(row.relative()));
  }
  std::stable_sort(out.rows.begin(), out.rows.end(), [](const auto& x, const auto& y) {
    return std::tie(x.rank, x.start_us) < std::tie(y.rank, y.start_us);
  });
  out.by_kind = sorted_sums(kinds);
  out.by_rank = sorted_sums(ranks);
  out.median = base::median(relative);
  return out;
}

std::string to_text(const TraceDiff& diff) {
  std::string out = base::format("{:<6}{:<32}{:<12}{:>11}{:>11}{:>11}{:>11}{:>11}\n", "rank", "task", "kind",
                                 "start us", "other", "us", "other", "residual");
  for (const TraceDiff::Row& r : diff.rows) {
    out += base::format("{:<6}{:<32}{:<12}{:>11.1f}{:>11.1f}{:>11.1f}{:>11.1f}{:>+11.1f}\n", r.rank, r.id, r.kind,
                        r.start_us, r.other_start_us, r.duration_us, r.other_duration_us, r.residual_us());
  }
  out += base::format("\nwhole {:.1f} us, other {:.1f} us\n", diff.extent_us, diff.other_extent_us);
  out += "sum of |residual|, us\n";
  for (const auto* list : {&diff.by_kind, &diff.by_rank}) {
    for (const auto& [name, us] : *list) out += base::format("  {:<16}{:>11.1f}\n", name, us);
  }
  out += base::format("median |residual| {:.1f} %\n", 100 * diff.median);
  return out;
}

base::Json to_json(const TraceDiff& diff) {
  using base::Json;
  Json rows = Json::array();
  for (const TraceDiff::Row& r : diff.rows) {
    Json row = Json::object();
    row.set("rank", r.rank).set("id", r.id).set("kind", r.kind).set("turn", r.turn);
    row.set("start_us", r.start_us).set("other_start_us", r.other_start_us);
    row.set("duration_us", r.duration_us).set("other_duration_us", r.other_duration_us);
    row.set("residual_us", r.residual_us());
    rows.push_back(std::move(row));
  }
  const auto sums = [](const auto& list) {
    Json out = Json::object();
    for (const auto& [name, us] : list) out.set(name, us);
    return out;
  };
  Json out = Json::object();
  out.set("extent_us", diff.extent_us).set("other_extent_us", diff.other_extent_us).set("median", diff.median);
  out.set("by_kind_us", sums(diff.by_kind)).set("by_rank_us", sums(diff.by_rank)).set("rows", std::move(rows));
  return out;
}

}  // namespace overlace::sim
