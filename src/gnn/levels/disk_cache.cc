#include "src/gnn/levels/disk_cache.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "src/base/ceil_div_pod.h"
#include "src/gnn/order/min_hash.h"

namespace overlace::gnn {
namespace {

/// Rows seen since the last clear(), counted once.
class DistinctRows {
 public:
  explicit DistinctRows(int64_t num_vertices) : seen_(static_cast<size_t>(num_vertices)) {}
  void clear() {
    ++turn_;
    count_ = 0;
  }
  void add(std::span<const uint32_t> rows) {
    for (const uint32_t v : rows) {
      count_ += seen_[v] != turn_;
      seen_[v] = turn_;
    }
  }
  int64_t count() const { return count_; }

 private:
  std::vector<uint32_t> seen_;
  uint32_t turn_ = 1;
  int64_t count_ = 0;
};

}  // namespace

base::Result<PageShape> page_shape(int64_t row_bytes, int64_t page_bytes) {
  if (row_bytes < 1) return base::invalid_argument("row_bytes is {}, wanted at least 1", row_bytes);
  if (page_bytes < 4096 || page_bytes > 65536 || !std::has_single_bit(static_cast<uint64_t>(page_bytes)))
    return base::invalid_argument("page_bytes is {}, wanted a power of two from 4096 to 65536", page_bytes);
  if (row_bytes <= page_bytes) return PageShape{page_bytes / row_bytes, page_bytes};
  return PageShape{1, base::round_up(row_bytes, page_bytes)};
}

int64_t stored_rows(const InputTrace& misses, int64_t length) {
  OVERLACE_ASSERT(length >= 1);
  DistinctRows rows(misses.num_vertices());
  int64_t sum = 0;
  for (int64_t b = 0; b < misses.num_batches(); ++b) {
    if (b % length == 0) {
      sum += rows.count();
      rows.clear();
    }
    rows.add(misses.inputs(b));
  }
  return sum + rows.count();
}

base::Result<int64_t> find_segment_length(const InputTrace& misses, int64_t max_rows) {
  const int64_t nb = misses.num_batches();
  if (nb == 0) return int64_t{1};
  DistinctRows rows(misses.num_vertices());
  int64_t length = 0;
  for (int64_t i = 0; i < nb; ++i) {
    rows.add(misses.inputs(i));
    // NOTE: in floating point, as rows times batches may not fit 64 bits; the exact count below decides.
    if (length == 0 && static_cast<double>(rows.count()) * static_cast<double>(nb) <=
                           static_cast<double>(max_rows) * static_cast<double>(i + 1))
      length = i + 1;
  }
  if (rows.count() > max_rows)
    return base::invalid_argument("disk cache: at most {} rows, wanted at least {}, which are missed at all", max_rows,
                                  rows.count());
  // The first segment stands for all; counted exactly, the shortest that fits is near.
  if (length == 0) length = nb;
  if (stored_rows(misses, length) <= max_rows) {
    while (length > 1 && stored_rows(misses, length - 1) <= max_rows) --length;
  } else {
    do length = std::min(nb, length + length / 64 + 1);
    while (length < nb && stored_rows(misses, length) > max_rows);
  }
  return length;
}

SegmentPages lay_out_segment(const InputTrace& misses, BatchRange segment, const DiskCacheOptions& options) {
  std::vector<uint8_t> times(static_cast<size_t>(misses.num_vertices()));  // missed never, once, more often
  SegmentPages out;
  for (int64_t b = segment.begin; b < segment.end; ++b)
    for (const uint32_t v : misses.inputs(b)) {
      if (times[v] == 1) out.rows.push_back(v);
      if (times[v] < 2) ++times[v];
    }
  if (options.min_hash)
    out.rows = hash_order(misses, segment, std::move(out.rows), options.seed);
  else
    std::sort(out.rows.begin(), out.rows.end());
  return out;
}

}  // namespace overlace::gnn
