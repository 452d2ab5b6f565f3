#include "src/study/gemm/minimize.h"

#include <algorithm>
#include <cstddef>
#include <limits>

#include "src/base/status.h"

namespace overlace::study {
namespace {

struct Corner {
  std::vector<double> x;
  double value;
};

/// centre + t (worst - centre)
std::vector<double> along(const std::vector<double>& centre, const std::vector<double>& worst, double t) {
  std::vector<double> x(centre.size());
  for (size_t i = 0; i < x.size(); ++i) x[i] = centre[i] + t * (worst[i] - centre[i]);
  return x;
}

/// Replaces the worst corner (the last) by a better one; false if none of the moves found one.
bool replace_worst(const Objective& objective, std::vector<Corner>* corners) {
  const size_t n = corners->size() - 1;
  Corner& worst = corners->back();
  std::vector<double> centre(n, 0);
  for (size_t i = 0; i < n; ++i)
    for (size_t j = 0; j < n; ++j) centre[j] += (*corners)[i].x[j] / static_cast<double>(n);
  const auto corner = [&](double t) {
    std::vector<double> x = along(centre, worst.x, t);
    const double value = objective(x);
    return Corner{std::move(x), value};
  };
  Corner mirrored = corner(-1);
  if (mirrored.value < corners->front().value) {
    Corner further = corner(-2);
    worst = further.value < mirrored.value ? std::move(further) : std::move(mirrored);
    return true;
  }
  if (mirrored.value < (*corners)[n - 1].value) {
    worst = std::move(mirrored);
    return true;
  }
  Corner inside = corner(mirrored.value < worst.value ? -0.5 : 0.5);
  if (inside.value >= std::min(mirrored.value, worst.value)) return false;
  worst = std::move(inside);
  return true;
}

}  // namespace

std::vector<double> minimize(const Objective& objective, std::vector<double> start, double step, int rounds) {
  std::vector<Corner> corners(start.size() + 1);
  for (size_t i = 0; i < corners.size(); ++i) {
    corners[i].x = start;
    if (i > 0) corners[i].x[i - 1] += step;
    corners[i].value = objective(corners[i].x);
  }
  const auto by_value = [](const Corner& a, const Corner& b) { return a.value < b.value; };
  for (int round = 0; round < rounds; ++round) {
    std::stable_sort(corners.begin(), corners.end(), by_value);
    if (replace_worst(objective, &corners)) continue;
    for (size_t i = 1; i < corners.size(); ++i) {
      corners[i].x = along(corners[0].x, corners[i].x, 0.5);
      corners[i].value = objective(corners[i].x);
    }
  }
  return std::min_element(corners.begin(), corners.end(), by_value)->x;
}

std::vector<double> minimize_from(const Objective& objective, const std::vector<std::vector<double>>& starts,
                                  double step, int rounds) {
  size_t combinations = 1;
  for (const auto& values : starts) combinations *= values.size();
  OVERLACE_ASSERT(combinations > 0);
  std::vector<double> best;
  double least = std::numeric_limits<double>::infinity();
  for (size_t c = 0; c < combinations; ++c) {
    std::vector<double> start(starts.size());
    size_t rest = c;
    for (size_t i = 0; i < starts.size(); ++i) {
      start[i] = starts[i][rest % starts[i].size()];
      rest /= starts[i].size();
    }
    std::vector<double> end = minimize(objective, std::move(start), step, rounds);
    const double value = objective(end);
    if (!best.empty() && value >= least) continue;
    least = value;
    best = std::move(end);
  }
  return minimize(objective, best, step, 3 * rounds);
}

Line fit_line(const std::vector<double>& x, const std::vector<double>& y) {
  OVERLACE_ASSERT(x.size() == y.size() && x.size() >= 2);
  // NOTE: weights 1 / y^2, so that a small time counts as much as a large one.
  double w = 0, wx = 0, wy = 0, wxx = 0, wxy = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double weight = 1 / (y[i] * y[i]);
    w += weight;
    wx += weight * x[i];
    wy += weight * y[i];
    wxx += weight * x[i] * x[i];
    wxy += weight * x[i] * y[i];
  }
  const double spread = w * wxx - wx * wx;
  OVERLACE_ASSERT(spread > 0);
  const double slope = (w * wxy - wx * wy) / spread;
  return {(wy - slope * wx) / w, slope};
}

}  // namespace overlace::study
