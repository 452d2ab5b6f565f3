// When rows will be used again: the future that a trace knows.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "src/gnn/sample/trace.h"

namespace overlace::gnn {

/// Batches [begin, end) of a trace. Times count from `begin`.
struct BatchRange {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
};

inline constexpr uint32_t kNeverUsed = std::numeric_limits<uint32_t>::max();

/// For each input row of each batch of a range the time of the batch that uses it next. 4 bytes per input row and
/// vertex.
class NextUses {
 public:
  /// The range is repeated forever: a next use lies at most range.size() batches ahead.
  static NextUses of_cycle(const InputTrace& trace, BatchRange range);
  /// The range ends at a batch of its own, at time range.size(), that uses `rows` and nothing else.
  static NextUses of_segment(const InputTrace& trace, BatchRange range, std::span<const uint32_t> rows);

  /// Beside trace.inputs(range.begin + time).
  std::span<const uint32_t> at(int64_t time) const {
    const auto t = static_cast<size_t>(time);
    return std::span(next_).subspan(offsets_[t], offsets_[t + 1] - offsets_[t]);
  }
  /// The first time that uses a vertex.
  uint32_t first(uint32_t vertex) const { return first_[vertex]; }
  /// All times but kNeverUsed lie below.
  uint32_t end_time() const { return end_time_; }

 private:
  NextUses(const InputTrace& trace, BatchRange range, std::vector<uint32_t> after, uint32_t end_time);

  std::vector<size_t> offsets_;
  std::vector<uint32_t> next_, first_;
  uint32_t end_time_;
};

}  // namespace overlace::gnn
