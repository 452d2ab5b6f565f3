// The disk cache: where disk space is short, rows that several batches of a segment miss are stored once, on pages.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "src/base/ceil_div_pod.h"
#include "src/base/status.h"
#include "src/gnn/levels/next_use.h"
#include "src/gnn/sample/trace.h"

namespace overlace::gnn {

struct DiskCacheOptions {
  int64_t max_rows = 0;       // that packs and disk cache may hold; 0: as many as there are, and no disk cache
  int64_t page_bytes = 4096;  // 4 KiB to 64 KiB, a power of two
  bool min_hash = true;       // false: by vertex
  uint64_t seed = 0;
};

/// How rows lie on pages. A row larger than a page begins one and takes whole pages.
struct PageShape {
  int64_t rows = 1;   // of a page
  int64_t bytes = 0;  // read at once: one page, or those of a row
};
base::Result<PageShape> page_shape(int64_t row_bytes, int64_t page_bytes);

/// Rows that are stored if segments have `length` batches: of each segment each row that it misses, once.
int64_t stored_rows(const InputTrace& misses, int64_t length);

/// DiskGNN's search: the shortest length whose first segment, taken for all, fits max_rows; from there, counted
/// exactly, shorter while all fit, or longer until they do. invalid_argument names the smallest max_rows that would do.
base::Result<int64_t> find_segment_length(const InputTrace& misses, int64_t max_rows);

/// Rows of one segment on pages.
struct SegmentPages {
  std::vector<uint32_t> rows;  // in their places: page k has those from k * shape.rows on
  int64_t num_pages(const PageShape& shape) const { return base::ceil_div(std::ssize(rows), shape.rows); }
};

/// The rows that at least two batches of the segment miss, in the order of hash_order() or by vertex.
SegmentPages lay_out_segment(const InputTrace& misses, BatchRange segment, const DiskCacheOptions& options);

/// Places of a segment's rows, looked up by vertex. 4 bytes per vertex.
class PagePlaces {
 public:
  static constexpr uint32_t kNone = 0xffffffffu;
  explicit PagePlaces(int64_t num_vertices) : place_(static_cast<size_t>(num_vertices), kNone) {}
  void take(const SegmentPages& segment) {
    for (const uint32_t v : taken_) place_[v] = kNone;
    taken_ = segment.rows;
    for (size_t i = 0; i < taken_.size(); ++i) place_[taken_[i]] = static_cast<uint32_t>(i);
  }
  /// kNone: the row is in the packs.
  uint32_t of(uint32_t vertex) const { return place_[vertex]; }

 private:
  std::vector<uint32_t> place_, taken_;
};

}  // namespace overlace::gnn
