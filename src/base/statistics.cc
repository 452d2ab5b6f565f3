#include "src/base/statistics.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "src/base/status.h"

namespace overlace::base {

double percentile(std::span<const double> samples, double percent) {
  OVERLACE_ASSERT(!samples.empty());
  OVERLACE_ASSERT(percent >= 0 && percent <= 100);
  std::vector<double> sorted(samples.begin(), samples.end());
  std::sort(sorted.begin(), sorted.end());
  const double position = percent / 100 * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(position);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return std::lerp(sorted[below], sorted[above], position - static_cast<double>(below));
}

double median(std::span<const double> samples) { return percentile(samples, 50); }

}  // namespace overlace::base
