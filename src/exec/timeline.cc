#include "src/exec/timeline.h"

#include <algorithm>
#include <cmath>

#include "src/spec/names.h"

namespace overlace::exec {

std::string labelled(std::string_view label, std::string_view name) {
  return label.empty() ? std::string(name) : base::format("{} {}", label, name);
}

base::NvtxRange task_range(const Call& call, const spec::Instance& instance) {
  const spec::Kind kind = call.program.task(instance).kind;
  return {spec::category_of(kind), [&] { return labelled(call.label, instance.id(call.program.schedule)); }};
}

base::Span work_span(const Call& call, const spec::Instance& instance) {
  const spec::Kind kind = call.program.task(instance).kind;
  base::Span span;
  span.rank = call.program.rank();
  span.lane = spec::lane_name(instance.lane);
  span.name = labelled(call.label, instance.id(call.program.schedule));
  span.category = spec::category_of(kind);
  span.bytes = kind == spec::Kind::gemm ? 0 : spec::bytes_written(call.program.schedule, instance);
  span.flops = gemm_flops(call.program, instance);
  return span;
}

base::Span wait_span(const Call& call, const spec::ResolvedWait& first, const std::string& lane) {
  base::Span span;
  span.rank = call.program.rank();
  span.lane = lane;
  span.name = labelled(call.label, "wait " + call.program.word_name(first.signal, first.slot));
  span.category = "wait";
  return span;
}

base::Span caller_span(int rank, std::string_view label, std::string_view name) {
  base::Span span;
  span.rank = rank;
  span.lane = kCallerLane;
  span.name = labelled(label, name);
  span.category = "other";
  return span;
}

base::Trace timed(Recording recording, std::span<const int64_t> mark_ns) {
  base::Trace trace;
  trace.spans.reserve(recording.spans.size());
  for (Recording::MarkedSpan& marked : recording.spans) {
    marked.span.begin_ns = mark_ns[marked.begin];
    // The clock of a device ticks coarsely and is read per mark.
    marked.span.end_ns = std::max(mark_ns[marked.begin], mark_ns[marked.end]);
    trace.spans.push_back(std::move(marked.span));
  }
  trace.arrows.reserve(recording.halves.size());
  for (Recording::MarkedHalf& marked : recording.halves) {
    (marked.half.to_lane.empty() ? marked.half.from_ns : marked.half.to_ns) = mark_ns[marked.mark];
    trace.arrows.push_back(std::move(marked.half));
  }
  return trace;
}

int64_t host_time_of_origin(std::span<const ClockSample> samples) {
  OVERLACE_ASSERT(!samples.empty());
  double earliest = 0, latest = 0;
  // Host times fit a double to a fraction of a microsecond only as differences.
  const int64_t base_ns = samples.front().before_ns;
  for (size_t i = 0; i < samples.size(); ++i) {
    const double low = static_cast<double>(samples[i].before_ns - base_ns) - samples[i].device_ns;
    const double high = static_cast<double>(samples[i].after_ns - base_ns) - samples[i].device_ns;
    earliest = i == 0 ? low : std::max(earliest, low);
    latest = i == 0 ? high : std::min(latest, high);
  }
  return base_ns + std::llround((earliest + latest) / 2);
}

}  // namespace overlace::exec
