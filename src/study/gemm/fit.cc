#include "src/study/gemm/fit.h"

#include <cmath>

#include "src/study/gemm/minimize.h"

namespace overlace::study {
namespace {

constexpr size_t kConstants = 6;

/// Logarithms keep every constant positive and give each the same scale.
GemmConstants constants_of(const std::vector<double>& logs) {
  return {std::exp(logs[0]), std::exp(logs[1]), std::exp(logs[2]),
          std::exp(logs[3]), std::exp(logs[4]), std::exp(logs[5])};
}

}  // namespace

base::Result<GemmConstants> fit_gemm(const GemmMachine& machine, const std::vector<GemmPoint>& points) {
  if (points.size() < kConstants)
    return base::invalid_argument("gemm fit: {} points, wanted at least {}", points.size(), kConstants);
  for (const GemmPoint& point : points) {
    if (!(point.time_us > 0)) return base::invalid_argument("gemm fit: time {} us, wanted > 0", point.time_us);
    const base::Result<GemmTime> time = best_gemm_time(point.shape, machine, GemmConstants{});
    if (!time.ok()) return time.status();
  }
  const Objective objective = [&](const std::vector<double>& logs) {
    const GemmConstants constants = constants_of(logs);
    double sum = 0;
    for (const GemmPoint& point : points) {
      const double error = std::log(best_gemm_time(point.shape, machine, constants).value().time_us() / point.time_us);
      sum += error * error;
    }
    return sum;
  };
  // Starts on both sides of what GPUs of several makers have: launch, tile, tensor, feed, memory, stream of a CTA.
  const std::vector<std::vector<double>> starts = {{std::log(10.0), std::log(30.0)}, {std::log(0.5), std::log(3.0)},
                                                   {std::log(0.6), std::log(0.9)},   {std::log(60.0), std::log(120.0)},
                                                   {std::log(0.4), std::log(0.8)},   {std::log(8.0), std::log(20.0)}};
  return constants_of(minimize_from(objective, starts, 0.3, 200));
}

}  // namespace overlace::study
