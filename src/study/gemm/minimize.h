// Least values of small functions without derivatives: what fits the few constants of a model to points.
#pragma once

#include <functional>
#include <vector>

namespace overlace::study {

using Objective = std::function<double(const std::vector<double>&)>;

/// Downhill simplex from `start`, whose edges are `step` long, for `rounds` moves. The same input gives the same bits.
/// Returns the best corner.
std::vector<double> minimize(const Objective& objective, std::vector<double> start, double step, int rounds);

/// From every combination of the values that `starts` lists per coordinate; the best end is refined once more.
std::vector<double> minimize_from(const Objective& objective, const std::vector<std::vector<double>>& starts,
                                  double step, int rounds);

struct Line {
  double floor = 0, slope = 0;
  double at(double x) const { return floor + slope * x; }
};
/// Least squares of the relative errors.
/// Precondition: two different x at least, all y > 0.
Line fit_line(const std::vector<double>& x, const std::vector<double>& y);

}  // namespace overlace::study
