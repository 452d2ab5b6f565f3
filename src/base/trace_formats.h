// What trace.cc shares with the writers and readers of the two foreign formats.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/base/json.h"
#include "src/base/trace.h"

namespace overlace::base::trace_formats {

/// Limits of what is read: a larger value is Errc::corrupt.
inline constexpr int kMaxRank = 65535;
inline constexpr int64_t kMaxTime = int64_t{1} << 62;

/// The earliest time of the trace, 0 if it is empty.
int64_t earliest_ns(const Trace& trace);

/// Viewers show a row per thread and want its slices disjoint: spans of a lane that overlap go to further rows.
struct Row {
  int rank = 0;
  std::string lane;
  std::vector<const Span*> spans;  // by begin, disjoint
};
/// Rows by rank, then by lane's name; every lane of a span or arrow has at least one.
std::vector<Row> rows_of(const Trace& trace);

/// Where an end of an arrow is tied: the row and the span that ends (source) or begins (target) at that very time, null
/// if there is none.
struct Anchor {
  size_t row = 0;
  const Span* span = nullptr;
};
class Anchors {
 public:
  explicit Anchors(const std::vector<Row>& rows);
  Anchor source(const Arrow& arrow) const;
  Anchor target(const Arrow& arrow) const;

 private:
  template <class Time>
  Anchor find(int rank, const std::string& lane, int64_t ns, Time time) const;
  const std::vector<Row>& rows_;
  struct Range {
    size_t begin = 0, end = 0;
  };
  std::map<std::pair<int, std::string>, Range> rows_of_lane_;
};

/// Process and thread ids of a row: viewers treat id 0 as the idle process.
inline int64_t pid_of(int rank) { return int64_t{rank} + 1; }
inline int64_t tid_of(size_t row_index) { return static_cast<int64_t>(row_index) + 1001; }
inline std::string process_name(int rank) { return format("rank {}", rank); }

/// Checked conversion of a span or arrow end that was read; errors name `source` and `what`.
Status check_rank(int64_t rank, std::string_view source, std::string_view what);
Status check_span(const Span& span, std::string_view source);

Result<Trace> parse_chrome(const Json& root, std::string_view source);
Result<Trace> parse_perfetto(std::string_view bytes, std::string_view source);

}  // namespace overlace::base::trace_formats
