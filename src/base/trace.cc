#include "src/base/trace.h"

#include <algorithm>
#include <iterator>
#include <limits>

#include "src/base/file.h"
#include "src/base/trace_formats.h"

namespace overlace::base {
namespace {

constexpr std::string_view kSchema = "overlace.trace/1";

enum class Field { integer, number, text };

/// A row of to_json: a fixed list of fields.
Status check_row(const Json& row, std::initializer_list<Field> fields, std::string_view what, size_t index) {
  if (!row.is_array() || row.as_array().size() != fields.size())
    return error(Errc::corrupt, "{} {}: wanted an array of {} values", what, index, fields.size());
  size_t i = 0;
  for (Field field : fields) {
    const Json& value = row.as_array()[i];
    const bool fits = field == Field::integer  ? value.is_int()
                      : field == Field::number ? value.is_number()
                                               : value.is_string();
    if (!fits) {
      const std::string_view wanted = field == Field::text ? "a string" : "a number";
      return error(Errc::corrupt, "{} {}: value {} is {}, wanted {}", what, index, i, value.type_name(), wanted);
    }
    ++i;
  }
  return {};
}

Status read_span(const Json& row, size_t index, std::string_view source, Span& span) {
  using enum Field;
  OVERLACE_TRY(check_row(row, {integer, text, text, text, integer, integer, integer, number},
                         format("{}: span", source), index));
  const Json::Array& v = row.as_array();
  OVERLACE_TRY(trace_formats::check_rank(v[0].as_int(), source, "span"));
  span = {.rank = static_cast<int>(v[0].as_int()),
          .lane = v[1].as_string(),
          .name = v[2].as_string(),
          .category = v[3].as_string(),
          .begin_ns = v[4].as_int(),
          .end_ns = v[5].as_int(),
          .bytes = v[6].as_int(),
          .flops = v[7].as_double()};
  return trace_formats::check_span(span, source);
}

Status read_arrow(const Json& row, size_t index, std::string_view source, Arrow& arrow) {
  using enum Field;
  OVERLACE_TRY(
      check_row(row, {text, integer, text, integer, integer, text, integer}, format("{}: arrow", source), index));
  const Json::Array& v = row.as_array();
  for (size_t i : {1u, 4u}) OVERLACE_TRY(trace_formats::check_rank(v[i].as_int(), source, "arrow"));
  for (size_t i : {3u, 6u})
    if (std::abs(v[i].as_int() / 2) > trace_formats::kMaxTime / 2)
      return error(Errc::corrupt, "{}: arrow {}: time {} is out of range", source, index, v[i].as_int());
  arrow = {.name = v[0].as_string(),
           .from_rank = static_cast<int>(v[1].as_int()),
           .from_lane = v[2].as_string(),
           .from_ns = v[3].as_int(),
           .to_rank = static_cast<int>(v[4].as_int()),
           .to_lane = v[5].as_string(),
           .to_ns = v[6].as_int()};
  return {};
}

Result<Trace> trace_of(const Json& root, std::string_view source) {
  const Json* title = root.find("title");
  const Json* emulated = root.find("emulated");
  const Json* spans = root.find("spans");
  const Json* arrows = root.find("arrows");
  if (title == nullptr || !title->is_string()) return error(Errc::corrupt, "{}: title: wanted a string", source);
  if (emulated == nullptr || !emulated->is_bool())
    return error(Errc::corrupt, "{}: emulated: wanted a boolean", source);
  if (spans == nullptr || !spans->is_array()) return error(Errc::corrupt, "{}: spans: wanted an array", source);
  if (arrows == nullptr || !arrows->is_array()) return error(Errc::corrupt, "{}: arrows: wanted an array", source);
  Trace trace;
  trace.title = title->as_string();
  trace.emulated = emulated->as_bool();
  for (const Json& row : spans->as_array()) {
    const size_t index = trace.spans.size();
    OVERLACE_TRY(read_span(row, index, source, trace.spans.emplace_back()));
  }
  for (const Json& row : arrows->as_array()) {
    const size_t index = trace.arrows.size();
    OVERLACE_TRY(read_arrow(row, index, source, trace.arrows.emplace_back()));
  }
  return trace;
}

bool is_trace_json(const Json& root) {
  const Json* schema = root.find("schema");
  return schema != nullptr && schema->is_string() && schema->as_string() == kSchema;
}

}  // namespace

namespace trace_formats {

int64_t earliest_ns(const Trace& trace) {
  int64_t earliest = std::numeric_limits<int64_t>::max();
  for (const Span& span : trace.spans) earliest = std::min(earliest, span.begin_ns);
  for (const Arrow& arrow : trace.arrows) earliest = std::min({earliest, arrow.from_ns, arrow.to_ns});
  return trace.spans.empty() && trace.arrows.empty() ? 0 : earliest;
}

std::vector<Row> rows_of(const Trace& trace) {
  std::map<std::pair<int, std::string>, std::vector<const Span*>> lanes;
  for (const Span& span : trace.spans) lanes[{span.rank, span.lane}].push_back(&span);
  for (const Arrow& arrow : trace.arrows) {
    lanes[{arrow.from_rank, arrow.from_lane}];
    lanes[{arrow.to_rank, arrow.to_lane}];
  }
  std::vector<Row> rows;
  for (auto& [lane, spans] : lanes) {
    std::stable_sort(spans.begin(), spans.end(),
                     [](const Span* a, const Span* b) { return a->begin_ns < b->begin_ns; });
    const size_t first = rows.size();
    rows.push_back({lane.first, lane.second, {}});
    for (const Span* span : spans) {
      size_t row = first;
      while (row < rows.size() && !rows[row].spans.empty() && rows[row].spans.back()->end_ns > span->begin_ns) ++row;
      if (row == rows.size()) rows.push_back({lane.first, lane.second, {}});
      rows[row].spans.push_back(span);
    }
  }
  return rows;
}

Anchors::Anchors(const std::vector<Row>& rows) : rows_(rows) {
  for (size_t i = 0; i < rows.size(); ++i)
    rows_of_lane_.try_emplace({rows[i].rank, rows[i].lane}, Range{i, i}).first->second.end = i + 1;
}

template <class Time>
Anchor Anchors::find(int rank, const std::string& lane, int64_t ns, Time time) const {
  const Range range = rows_of_lane_.at({rank, lane});
  for (size_t i = range.begin; i < range.end; ++i) {
    const auto& spans = rows_[i].spans;  // disjoint: both their begins and their ends ascend
    const auto it = std::lower_bound(spans.begin(), spans.end(), ns,
                                     [&](const Span* span, int64_t value) { return time(*span) < value; });
    if (it != spans.end() && time(**it) == ns) return {i, *it};
  }
  return {range.begin, nullptr};
}

Anchor Anchors::source(const Arrow& arrow) const {
  return find(arrow.from_rank, arrow.from_lane, arrow.from_ns, [](const Span& span) { return span.end_ns; });
}

Anchor Anchors::target(const Arrow& arrow) const {
  return find(arrow.to_rank, arrow.to_lane, arrow.to_ns, [](const Span& span) { return span.begin_ns; });
}

Status check_rank(int64_t rank, std::string_view source, std::string_view what) {
  if (rank >= 0 && rank <= kMaxRank) return {};
  return error(Errc::corrupt, "{}: {}: rank is {}, wanted 0 to {}", source, what, rank, kMaxRank);
}

Status check_span(const Span& span, std::string_view source) {
  if (span.begin_ns < -kMaxTime || span.end_ns > kMaxTime || span.end_ns < span.begin_ns)
    return error(Errc::corrupt, "{}: span \"{}\" goes from {} to {} ns", source, span.name, span.begin_ns, span.end_ns);
  return {};
}

}  // namespace trace_formats

void Trace::merge(Trace other) {
  if (title.empty()) title = std::move(other.title);
  emulated = emulated || other.emulated;
  spans.insert(spans.end(), std::make_move_iterator(other.spans.begin()), std::make_move_iterator(other.spans.end()));
  arrows.insert(arrows.end(), std::make_move_iterator(other.arrows.begin()),
                std::make_move_iterator(other.arrows.end()));
}

std::string Trace::to_json() const {
  Json::Array span_rows, arrow_rows;
  span_rows.reserve(spans.size());
  for (const Span& s : spans)
    span_rows.emplace_back(Json::Array{s.rank, s.lane, s.name, s.category, s.begin_ns, s.end_ns, s.bytes, s.flops});
  arrow_rows.reserve(arrows.size());
  for (const Arrow& a : arrows)
    arrow_rows.emplace_back(Json::Array{a.name, a.from_rank, a.from_lane, a.from_ns, a.to_rank, a.to_lane, a.to_ns});
  return Json(Json::Object{{"schema", kSchema},
                           {"title", title},
                           {"emulated", emulated},
                           {"spans", std::move(span_rows)},
                           {"arrows", std::move(arrow_rows)}})
      .dump();
}

Result<Trace> Trace::from_json(std::string_view text, std::string_view source) {
  Result<Json> root = Json::parse(text, source);
  if (!root.ok()) return root.status();
  if (!is_trace_json(*root)) return error(Errc::corrupt, "{}: schema: wanted \"{}\"", source, kSchema);
  return trace_of(*root, source);
}

Result<Trace> parse_trace(std::string_view bytes, std::string_view source) {
  const size_t first = bytes.find_first_not_of(" \t\r\n");
  const bool may_be_json = first != std::string_view::npos && (bytes[first] == '{' || bytes[first] == '[');
  // A native trace begins with the tag of its first packet, which is a newline to JSON.
  const bool may_be_native = !bytes.empty() && bytes.front() == '\n';
  if (!may_be_json && !may_be_native)
    return error(Errc::corrupt, "{}: neither a Perfetto nor a Chrome JSON trace", source);
  if (may_be_native) {
    Result<Trace> native = trace_formats::parse_perfetto(bytes, source);
    if (native.ok() || !may_be_json) return native;
  }
  Result<Json> root = Json::parse(bytes, source);
  if (!root.ok()) return root.status();
  return is_trace_json(*root) ? trace_of(*root, source) : trace_formats::parse_chrome(*root, source);
}

Status write_trace(const Trace& trace, const std::string& path) {
  const std::string_view name = path;
  if (name.ends_with(".json")) return write_file(path, to_chrome_json(trace));
  if (name.ends_with(".pftrace") || name.ends_with(".perfetto-trace")) return write_file(path, to_perfetto(trace));
  return invalid_argument("trace file {}: wanted a name that ends in .json, .pftrace or .perfetto-trace", path);
}

}  // namespace overlace::base
