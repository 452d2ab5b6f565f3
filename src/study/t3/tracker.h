// The tracker of T3 (arXiv 2401.16677, section 4.2): counts updates of wavefront output tiles in a set-associative
// table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace overlace::study::t3 {

struct TrackerOptions {
  int sets = 256;  // indexed by the low bits of the work group
  int ways = 8;    // tagged by its high bits and the wavefront (ours: the paper does not give the number)
};

/// A tile is ready once `threshold` updates of all its elements were counted. Its entry is freed then.
class Tracker {
 public:
  enum class Outcome { counted, ready, full };

  explicit Tracker(const TrackerOptions& options);
  /// Counts one update of the tile (`group`, `wavefront`); full if its set has no way left, then nothing is counted.
  Outcome update(int64_t group, int wavefront, int threshold);
  int64_t entries() const { return entries_; }
  int64_t peak_entries() const { return peak_entries_; }

 private:
  struct Entry {
    uint64_t tag = 0;
    int count = 0;  // 0: free
  };
  TrackerOptions options_;
  std::vector<Entry> table_;
  int64_t entries_ = 0, peak_entries_ = 0;
};

}  // namespace overlace::study::t3
