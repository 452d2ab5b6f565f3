#include "src/study/network/curve.h"

#include <algorithm>
#include <cmath>

#include "src/base/status.h"

namespace overlace::study {

double ProtocolCurve::us(double bytes) const {
  const Part* part = &parts.front();
  for (const Part& later : parts)
    if (bytes >= later.from_bytes) part = &later;
  return part->us.at(bytes);
}

ProtocolCurve fit_protocols(const std::vector<double>& bytes, const std::vector<double>& us,
                            const std::vector<double>& starts) {
  ProtocolCurve curve;
  for (size_t i = 0; i < starts.size(); ++i) {
    std::vector<double> x, y;
    for (size_t j = 0; j < bytes.size(); ++j) {
      if (bytes[j] < starts[i] || (i + 1 < starts.size() && bytes[j] >= starts[i + 1])) continue;
      x.push_back(bytes[j]);
      y.push_back(us[j]);
    }
    OVERLACE_ASSERT(x.size() >= 2);
    curve.parts.push_back({starts[i], fit_line(x, y)});
  }
  return curve;
}

double tier_share(const TierConstants& constants, double ideal_us, double steps) {
  return ideal_us / (ideal_us / constants.efficiency + steps * constants.alpha_us + constants.fixed_us);
}

TierConstants fit_tier(const std::vector<TierPoint>& points, bool has_fixed) {
  // An efficiency stays below 1, times stay positive.
  const auto constants_of = [&](const std::vector<double>& x) {
    return TierConstants{1 / (1 + std::exp(-x[0])), std::exp(x[1]), has_fixed ? std::exp(x[2]) : 0};
  };
  const Objective objective = [&](const std::vector<double>& x) {
    const TierConstants constants = constants_of(x);
    double largest = 0;
    for (const TierPoint& point : points)
      largest = std::max(largest, std::abs(tier_share(constants, point.ideal_us, point.steps) / point.share - 1));
    return largest;
  };
  std::vector<std::vector<double>> starts = {{1, 3, 6}, {std::log(3.0), std::log(30.0)}};
  if (has_fixed) starts.push_back({std::log(5.0), std::log(50.0)});
  return constants_of(minimize_from(objective, starts, 0.5, 400));
}

}  // namespace overlace::study
