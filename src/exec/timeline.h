// Spans of a call, alike on all backends; and what a device records of them before their times are known.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "src/base/nvtx.h"
#include "src/base/trace.h"
#include "src/exec/program.h"

namespace overlace::exec {

/// The lane of everything that runs on the caller's stream or thread outside schedules.
inline constexpr const char* kCallerLane = "sm 0";

/// "qkv reduce[s=1]", or the name alone without a label.
std::string labelled(std::string_view label, std::string_view name);
/// Around what the host does for an instance, while it computes (cpu) or queues (cuda): called as its span is.
base::NvtxRange task_range(const Call& call, const spec::Instance& instance);
/// The span of an instance's work; begin and end are still missing, as in all below.
base::Span work_span(const Call& call, const spec::Instance& instance);
/// Named after the first of its waits.
base::Span wait_span(const Call& call, const spec::ResolvedWait& first, const std::string& lane);
/// Work between schedules: category `other` on the caller's lane.
base::Span caller_span(int rank, std::string_view label, std::string_view name);

/// Marks are points on a device's streams, counted from 0. Spans and halves of arrows name them in place of times.
struct Recording {
  struct MarkedSpan {
    base::Span span;
    size_t begin = 0, end = 0;
  };
  struct MarkedHalf {
    base::Arrow half;  // sent_half or seen_half
    size_t mark = 0;
  };
  std::vector<MarkedSpan> spans;
  std::vector<MarkedHalf> halves;
};
/// `mark_ns[i]`: when mark i was passed. What names one mark gets one time, so an arrow starts where its span ends.
base::Trace timed(Recording recording, std::span<const int64_t> mark_ns);

/// A mark that the device passed `device_ns` after its first one, and between two looks at the host's clock.
struct ClockSample {
  int64_t before_ns = 0, after_ns = 0;
  double device_ns = 0;
};
/// Host time of the device's first mark: the middle of what all samples allow. At least one sample.
int64_t host_time_of_origin(std::span<const ClockSample> samples);

}  // namespace overlace::exec
