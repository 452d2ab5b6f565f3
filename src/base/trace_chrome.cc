#include <algorithm>
#include <cmath>

#include "src/base/trace_formats.h"

namespace overlace::base {
namespace trace_formats {
namespace {

/// Chrome's unit is the microsecond; three decimals keep nanoseconds exact.
double to_us(int64_t ns) { return static_cast<double>(ns) / 1000; }

Json metadata(std::string_view what, int64_t pid, int64_t tid, std::string_view key, Json value) {
  return Json::Object{{"ph", "M"},
                      {"name", what},
                      {"pid", pid},
                      {"tid", tid},
                      {"args", Json::Object{{std::string(key), std::move(value)}}}};
}

/// One end of a flow arrow. Viewers tie it to the slice that is open at its time, so a source at the very end of its
/// slice is drawn 1 ns early; the argument keeps the exact time.
Json flow_end(const Arrow& arrow, size_t id, const Anchor& anchor, int64_t ns, bool is_start) {
  const int rank = is_start ? arrow.from_rank : arrow.to_rank;
  const bool is_inside = is_start && anchor.span != nullptr && anchor.span->end_ns > anchor.span->begin_ns;
  Json event = Json::Object{{"ph", is_start ? "s" : "f"},
                            {"id", static_cast<int64_t>(id)},
                            {"name", arrow.name},
                            {"cat", "signal"},
                            {"pid", pid_of(rank)},
                            {"tid", tid_of(anchor.row)},
                            {"ts", to_us(is_inside ? ns - 1 : ns)},
                            {"args", Json::Object{{"at_ns", ns}}}};
  if (!is_start) event.set("bp", "e");
  return event;
}

struct ChromeReader {
  std::string_view source;
  std::map<int64_t, int> ranks;          // by process id
  std::map<int64_t, std::string> lanes;  // by thread id
  std::map<int64_t, Arrow> open_arrows;  // by flow id
  Trace trace;

  Status fail(size_t index, std::string_view why) const {
    return error(Errc::corrupt, "{}: trace event {}: {}", source, index, why);
  }

  Status integer(const Json& event, std::string_view key, size_t index, int64_t& out) const {
    const Json* value = event.find(key);
    if (value == nullptr || !value->is_int()) return fail(index, format("{}: wanted an integer", key));
    out = value->as_int();
    return {};
  }
  Status text(const Json& event, std::string_view key, size_t index, std::string& out) const {
    const Json* value = event.find(key);
    if (value == nullptr || !value->is_string()) return fail(index, format("{}: wanted a string", key));
    out = value->as_string();
    return {};
  }
  Status nanoseconds(const Json& event, std::string_view key, size_t index, int64_t& out) const {
    const Json* value = event.find(key);
    if (value == nullptr || !value->is_number()) return fail(index, format("{}: wanted a number", key));
    const double ns = value->as_double() * 1000;
    if (!(std::abs(ns) <= static_cast<double>(kMaxTime) / 4)) return fail(index, format("{}: out of range", key));
    out = std::llround(ns);
    return {};
  }
  /// Time of a flow's end: exact where the writer gave it.
  Status flow_time(const Json& event, size_t index, int64_t& out) const {
    const Json* args = event.find("args");
    if (args == nullptr || args->find("at_ns") == nullptr) return nanoseconds(event, "ts", index, out);
    OVERLACE_TRY(integer(*args, "at_ns", index, out));
    return out >= -kMaxTime && out <= kMaxTime ? Status() : fail(index, "at_ns: out of range");
  }
  Status place(const Json& event, size_t index, int& rank, std::string& lane) const {
    int64_t pid = 0, tid = 0;
    OVERLACE_TRY(integer(event, "pid", index, pid));
    OVERLACE_TRY(integer(event, "tid", index, tid));
    const auto process = ranks.find(pid);
    const auto thread = lanes.find(tid);
    if (process == ranks.end()) return fail(index, format("pid {} has no name before it", pid));
    if (thread == lanes.end()) return fail(index, format("tid {} has no name before it", tid));
    rank = process->second;
    lane = thread->second;
    return {};
  }

  Status read_metadata(const Json& event, size_t index) {
    std::string what, name;
    OVERLACE_TRY(text(event, "name", index, what));
    if (what != "process_name" && what != "thread_name") return {};
    const Json* args = event.find("args");
    if (args == nullptr) return fail(index, "args: wanted an object");
    OVERLACE_TRY(text(*args, "name", index, name));
    int64_t id = 0;
    OVERLACE_TRY(integer(event, what == "process_name" ? "pid" : "tid", index, id));
    if (what == "thread_name") {
      lanes[id] = name;
      return {};
    }
    OVERLACE_TRY(check_rank(id < 1 ? -1 : id - 1, source, "process"));
    ranks[id] = static_cast<int>(id - 1);
    return {};
  }

  Status read_slice(const Json& event, size_t index) {
    Span span;
    int64_t duration = 0;
    OVERLACE_TRY(place(event, index, span.rank, span.lane));
    OVERLACE_TRY(text(event, "name", index, span.name));
    if (event.find("cat") != nullptr) OVERLACE_TRY(text(event, "cat", index, span.category));
    OVERLACE_TRY(nanoseconds(event, "ts", index, span.begin_ns));
    OVERLACE_TRY(nanoseconds(event, "dur", index, duration));
    span.end_ns = span.begin_ns + duration;
    if (const Json* args = event.find("args"); args != nullptr) {
      if (args->find("bytes") != nullptr) OVERLACE_TRY(integer(*args, "bytes", index, span.bytes));
      if (const Json* flops = args->find("flops"); flops != nullptr && flops->is_number())
        span.flops = flops->as_double();
    }
    OVERLACE_TRY(check_span(span, source));
    trace.spans.push_back(std::move(span));
    return {};
  }

  Status read_flow(const Json& event, size_t index, bool is_start) {
    int64_t id = 0;
    OVERLACE_TRY(integer(event, "id", index, id));
    if (is_start) {
      Arrow arrow;
      OVERLACE_TRY(text(event, "name", index, arrow.name));
      OVERLACE_TRY(place(event, index, arrow.from_rank, arrow.from_lane));
      OVERLACE_TRY(flow_time(event, index, arrow.from_ns));
      if (!open_arrows.emplace(id, std::move(arrow)).second) return fail(index, format("flow {} starts twice", id));
      return {};
    }
    const auto it = open_arrows.find(id);
    if (it == open_arrows.end()) return fail(index, format("flow {} ends before its start", id));
    OVERLACE_TRY(place(event, index, it->second.to_rank, it->second.to_lane));
    OVERLACE_TRY(flow_time(event, index, it->second.to_ns));
    trace.arrows.push_back(std::move(it->second));
    open_arrows.erase(it);
    return {};
  }

  Status read(const Json& event, size_t index) {
    std::string phase;
    OVERLACE_TRY(text(event, "ph", index, phase));
    if (phase == "M") return read_metadata(event, index);
    if (phase == "X") return read_slice(event, index);
    if (phase == "s" || phase == "f") return read_flow(event, index, phase == "s");
    return fail(index, format("phase \"{}\", wanted M, X, s or f", phase));
  }
};

}  // namespace

Result<Trace> parse_chrome(const Json& root, std::string_view source) {
  const Json* events = root.is_array() ? &root : root.find("traceEvents");
  if (events == nullptr || !events->is_array()) return error(Errc::corrupt, "{}: traceEvents: wanted an array", source);
  ChromeReader reader{.source = source, .ranks = {}, .lanes = {}, .open_arrows = {}, .trace = {}};
  if (const Json* other = root.find("otherData"); other != nullptr) {
    if (const Json* title = other->find("title"); title != nullptr && title->is_string())
      reader.trace.title = title->as_string();
    if (const Json* emulated = other->find("emulated"); emulated != nullptr && emulated->is_bool())
      reader.trace.emulated = emulated->as_bool();
  }
  size_t index = 0;
  for (const Json& event : events->as_array()) OVERLACE_TRY(reader.read(event, index++));
  if (!reader.open_arrows.empty())
    return error(Errc::corrupt, "{}: flow {} never ends", source, reader.open_arrows.begin()->first);
  return std::move(reader.trace);
}

}  // namespace trace_formats

std::string to_chrome_json(const Trace& trace) {
  using namespace trace_formats;
  const int64_t origin = earliest_ns(trace);
  const std::vector<Row> rows = rows_of(trace);
  Json::Array events;
  for (size_t i = 0; i < rows.size(); ++i) {
    const int64_t pid = pid_of(rows[i].rank), tid = tid_of(i);
    const std::string suffix = trace.emulated ? " (emulated)" : "";
    if (i == 0 || rows[i].rank != rows[i - 1].rank) {
      events.push_back(metadata("process_name", pid, tid, "name", process_name(rows[i].rank) + suffix));
      events.push_back(metadata("process_sort_index", pid, tid, "sort_index", rows[i].rank));
    }
    events.push_back(metadata("thread_name", pid, tid, "name", rows[i].lane));
    events.push_back(metadata("thread_sort_index", pid, tid, "sort_index", static_cast<int64_t>(i)));
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    for (const Span* span : rows[i].spans) {
      Json args = Json::object();
      if (span->bytes != 0) args.set("bytes", span->bytes);
      if (span->flops != 0) args.set("flops", span->flops);
      events.push_back(Json::Object{{"ph", "X"},
                                    {"name", span->name},
                                    {"cat", span->category},
                                    {"pid", pid_of(rows[i].rank)},
                                    {"tid", tid_of(i)},
                                    {"ts", to_us(span->begin_ns - origin)},
                                    {"dur", to_us(std::max<int64_t>(span->end_ns - span->begin_ns, 0))},
                                    {"args", std::move(args)}});
    }
  }
  const Anchors anchors(rows);
  size_t id = 0;
  for (const Arrow& arrow : trace.arrows) {
    ++id;
    events.push_back(flow_end(arrow, id, anchors.source(arrow), arrow.from_ns - origin, true));
    events.push_back(flow_end(arrow, id, anchors.target(arrow), arrow.to_ns - origin, false));
  }
  return Json(Json::Object{{"displayTimeUnit", "ns"},
                           {"otherData", Json::Object{{"title", trace.title}, {"emulated", trace.emulated}}},
                           {"traceEvents", std::move(events)}})
      .dump();
}

}  // namespace overlace::base
