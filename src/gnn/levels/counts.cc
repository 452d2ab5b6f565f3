#include "src/gnn/levels/counts.h"

#include <algorithm>
#include <numeric>

namespace overlace::gnn {

std::vector<uint32_t> use_counts(const InputTrace& trace) {
  std::vector<uint32_t> counts(static_cast<size_t>(trace.num_vertices()));
  for (int64_t b = 0; b < trace.num_batches(); ++b)
    for (const uint32_t v : trace.inputs(b)) ++counts[v];
  return counts;
}

std::vector<uint32_t> hottest_rows(std::span<const uint32_t> counts, int64_t n) {
  OVERLACE_ASSERT(n >= 0 && n <= static_cast<int64_t>(counts.size()));
  std::vector<uint32_t> rows(counts.size());
  std::iota(rows.begin(), rows.end(), 0u);
  const auto is_hotter = [&](uint32_t a, uint32_t b) { return counts[a] != counts[b] ? counts[a] > counts[b] : a < b; };
  if (n < static_cast<int64_t>(rows.size())) std::nth_element(rows.begin(), rows.begin() + n, rows.end(), is_hotter);
  rows.resize(static_cast<size_t>(n));
  std::sort(rows.begin(), rows.end(), is_hotter);
  return rows;
}

}  // namespace overlace::gnn
