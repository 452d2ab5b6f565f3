// What happened when: spans on lanes and arrows between them, written as native Perfetto or Chrome JSON. The runtime,
// exec and (later) the simulator write the same form.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/status.h"

namespace overlace::base {

/// Times in ns on one clock for all ranks of a host (CLOCK_MONOTONIC), made relative to the earliest on writing.
struct Span {
  int rank = 0;
  std::string lane;      // "sm 0", "ce 1", "link 0->1"
  std::string name;      // instance id: "gemm_remote[s=2]"
  std::string category;  // gemm | copy | reduce | collective | wait | other
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  int64_t bytes = 0;  // moved; 0 if none
  double flops = 0;
};

/// A signal seen: from the end of one span to the begin of another, matched by `id` on writing.
struct Arrow {
  std::string name;  // "arrived[1]"
  int from_rank = 0;
  std::string from_lane;
  int64_t from_ns = 0;
  int to_rank = 0;
  std::string to_lane;
  int64_t to_ns = 0;
};

struct Trace {
  std::string title;
  bool emulated = false;  // link or hosts: shown wherever its numbers appear
  std::vector<Span> spans;
  std::vector<Arrow> arrows;

  void merge(Trace other);
  /// Compact form for sending between processes; parse is its inverse.
  std::string to_json() const;
  static Result<Trace> from_json(std::string_view text, std::string_view source = "trace");
};

/// Chrome trace event JSON (one process per rank, one thread per lane, arrows as flow events).
std::string to_chrome_json(const Trace& trace);
/// Native Perfetto: TracePacket protobuf with track descriptors and flow ids.
std::string to_perfetto(const Trace& trace);
/// Reads what to_chrome_json, to_perfetto or Trace::to_json wrote (told apart by content).
Result<Trace> parse_trace(std::string_view bytes, std::string_view source);
/// By ending: .json Chrome, .pftrace or .perfetto-trace native. Whole file or none (temporary file and rename).
Status write_trace(const Trace& trace, const std::string& path);

}  // namespace overlace::base
