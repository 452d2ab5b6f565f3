// Rounds as spans, with the names that the simulator of `overlace sim graph co2` gives: steps, update, all_reduce.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>

#include "src/base/trace.h"

namespace overlace::train {

/// Spans of one rank. Times are those of now_ns().
class RoundTrace {
 public:
  /// Inner steps begin here, and nothing before them counts.
  void restart(int64_t now_ns);
  /// They end, or end later than was said before: a rule that waits makes its increments first.
  void end_steps(int64_t now_ns);
  /// A pass of the boundary, which `end_boundary` ends. Passes are one span, as long as all of them, before the last
  /// one's end: what lies between them is waiting.
  void pass(int64_t begin_ns, int64_t end_ns);
  void end_boundary(int64_t now_ns);
  void wait(int64_t begin_ns, int64_t end_ns) { add("compute", "wait", "wait", begin_ns, end_ns, 0); }
  void exchange(int64_t begin_ns, int64_t end_ns, int64_t bytes) {
    add("net", "all_reduce", "collective", begin_ns, end_ns, bytes);
  }
  /// The last spans, at most kKeptSpans.
  base::Trace trace(int rank, const std::string& title) const;
  static constexpr size_t kKeptSpans = 65536;

 private:
  void add(const char* lane, const char* name, const char* category, int64_t begin_ns, int64_t end_ns, int64_t bytes);

  std::deque<base::Span> spans_;
  int64_t steps_begin_ns_ = 0, steps_end_ns_ = 0, pass_ns_ = 0, last_pass_end_ns_ = 0;
};

}  // namespace overlace::train
