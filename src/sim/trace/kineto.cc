#include "src/sim/trace/kineto.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "src/base/trace_formats.h"

namespace overlace::sim {
namespace {

using base::Json;
using base::Span;
using base::Status;

constexpr double kMostUs = 9e15;  // 285 years: what a double holds to the microsecond
constexpr double kMostExtentUs = 1e12;

const Json* events_of(const Json& root) {
  const Json* events = root.is_array() ? &root : root.find("traceEvents");
  return events != nullptr && events->is_array() ? events : nullptr;
}

std::string text_of(const Json& object, std::string_view key) {
  const Json* value = object.find(key);
  return value != nullptr && value->is_string() ? value->as_string() : std::string();
}

bool has_any(std::string_view name, std::initializer_list<std::string_view> parts) {
  return std::any_of(parts.begin(), parts.end(),
                     [&](std::string_view part) { return name.find(part) != std::string_view::npos; });
}

bool is_device(std::string_view category) {
  return category == "kernel" || category == "gpu_memcpy" || category == "gpu_memset" || category == "Kernel" ||
         category == "Memcpy" || category == "Memset";
}

std::string kind_of(std::string_view category, std::string name) {
  std::transform(name.begin(), name.end(), name.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  if (has_any(name, {"nccl", "rccl"})) return "collective";
  if (has_any(name, {"memcpy"}) || category == "gpu_memcpy") return "copy";
  if (has_any(name, {"gemm", "xmma", "cutlass", "matmul", "nvjet"})) return "gemm";
  if (has_any(name, {"reduce"})) return "reduce";
  return "other";
}

/// Bytes of a copy, or of a collective's input.
int64_t bytes_of(const Json& args) {
  const auto whole = [&](std::string_view key) -> int64_t {
    const Json* value = args.find(key);
    return value != nullptr && value->is_int() && value->as_int() > 0 ? value->as_int() : 0;
  };
  if (const int64_t bytes = whole("bytes"); bytes > 0) return bytes;
  const int64_t elements = whole("In msg nelems");
  const std::string type = text_of(args, "dtype");
  const int64_t size = has_any(type, {"Double", "Long"})              ? 8
                       : has_any(type, {"Float8", "Byte", "Char"})    ? 1
                       : has_any(type, {"BFloat16", "Half", "Short"}) ? 2
                       : has_any(type, {"Float", "Int"})              ? 4
                                                                      : 0;
  return size > 0 && elements < (int64_t{1} << 59) ? elements * size : 0;
}

struct KinetoEvent {
  const Json* json;
  std::string category;
  double begin_us, us;
};

Status read_event(const Json& event, size_t index, std::string_view source, std::vector<KinetoEvent>* out) {
  const auto fail = [&](std::string_view why) {
    return base::error(Errc::corrupt, "{}: trace event {}: {}", source, index, why);
  };
  if (!event.is_object()) return fail("wanted an object");
  if (text_of(event, "ph") != "X") return {};
  KinetoEvent read{&event, text_of(event, "cat"), 0, 0};
  for (const bool is_begin : {true, false}) {
    const char* const key = is_begin ? "ts" : "dur";
    const Json* value = event.find(key);
    if (value == nullptr || !value->is_number()) return fail(base::format("{}: wanted a number", key));
    const double us = value->as_double();
    if (!(std::abs(us) <= kMostUs) || (!is_begin && us < 0)) return fail(base::format("{}: out of range", key));
    (is_begin ? read.begin_us : read.us) = us;
  }
  if (const Json* name = event.find("name"); name == nullptr || !name->is_string())
    return fail("name: wanted a string");
  out->push_back(std::move(read));
  return {};
}

std::string number_text(const Json* value) {
  if (value == nullptr) return "?";
  return value->is_string() ? value->as_string() : value->is_int() ? base::format("{}", value->as_int()) : "?";
}

}  // namespace

bool is_foreign_chrome(const Json& root) {
  if (events_of(root) == nullptr) return false;
  const Json* other = root.find("otherData");
  return other == nullptr || other->find("title") == nullptr;
}

base::Result<base::Trace> parse_kineto(const Json& root, std::string_view source) {
  const Json* list = events_of(root);
  if (list == nullptr) return base::error(Errc::corrupt, "{}: traceEvents: wanted an array", source);
  base::Trace trace;
  trace.title = std::string(source);
  int rank = 0;
  if (const Json* info = root.find("distributedInfo"); info != nullptr && info->find("rank") != nullptr) {
    const Json* value = info->find("rank");
    if (!value->is_int()) return base::error(Errc::corrupt, "{}: distributedInfo: rank: wanted an integer", source);
    OVERLACE_TRY(base::trace_formats::check_rank(value->as_int(), source, "distributedInfo"));
    rank = static_cast<int>(value->as_int());
  }
  std::vector<KinetoEvent> events;
  for (size_t i = 0; i < list->as_array().size(); ++i)
    OVERLACE_TRY(read_event(list->as_array()[i], i, source, &events));
  const bool has_device =
      std::any_of(events.begin(), events.end(), [](const KinetoEvent& e) { return is_device(e.category); });
  std::erase_if(events, [&](const KinetoEvent& e) { return has_device && !is_device(e.category); });
  if (events.empty()) return base::error(Errc::corrupt, "{}: no complete event, wanted kernels or slices", source);
  double first_us = events[0].begin_us;
  for (const KinetoEvent& e : events) first_us = std::min(first_us, e.begin_us);
  for (const KinetoEvent& e : events) {
    const double begin = e.begin_us - first_us;
    if (!(begin + e.us <= kMostExtentUs))
      return base::error(Errc::corrupt, "{}: {} ends {} us after the first event, wanted at most {}", source,
                         text_of(*e.json, "name"), begin + e.us, kMostExtentUs);
    const Json* args = e.json->find("args");
    const Json* stream = args != nullptr ? args->find("stream") : nullptr;
    Span span;
    span.rank = rank;
    span.lane = stream != nullptr && stream->is_int()
                    ? base::format("stream {}", stream->as_int())
                    : base::format("{} {}", number_text(e.json->find("pid")), number_text(e.json->find("tid")));
    span.name = text_of(*e.json, "name");
    span.category = kind_of(e.category, span.name);
    span.begin_ns = std::llround(begin * 1e3);
    span.end_ns = std::llround((begin + e.us) * 1e3);
    span.bytes = args != nullptr ? bytes_of(*args) : 0;
    trace.spans.push_back(std::move(span));
  }
  return trace;
}

}  // namespace overlace::sim
