// `overlace trace info|convert`.
#pragma once

#include <string>

#include "src/base/json.h"
#include "src/base/status.h"
#include "src/base/trace.h"

namespace overlace::cli {

/// What `trace info` prints: title, ranks, duration, per lane spans, busy time, bytes and rates, and the time of each
/// task, ending with a newline.
std::string describe_trace(const base::Trace& trace);
/// What `trace info` prints as data, schema overlace.trace_info/1.
base::Json trace_json(const base::Trace& trace);

/// Reads `path` in any of the formats, those of PyTorch's profiler and of Chakra too. NAME.et: that file, else the
/// ranks' NAME.0.et, NAME.1.et, ... Errc::io or Errc::corrupt.
base::Result<base::Trace> load_trace(const std::string& path);
/// Exit code; `json`: as of write_result.
int trace_info(const std::string& path, const std::string& json);
/// invalid_argument where write_timeline has no format for the ending: before there is anything to write.
base::Status check_timeline_name(const std::string& path);
/// By ending, as base::write_trace; NAME.et: NAME.0.et, NAME.1.et, ..., one per rank, and those of more ranks that are
/// there are removed. Errc::invalid_argument where most of these would be empty, and where NAME.et itself is there.
base::Status write_timeline(const base::Trace& trace, const std::string& path);
/// The ending of `to` chooses its format; `from` and `to` may be the same file.
base::Status trace_convert(const std::string& from, const std::string& to);

}  // namespace overlace::cli
