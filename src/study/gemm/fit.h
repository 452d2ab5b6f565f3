// Constants of the wave model from measured times.
#pragma once

#include <vector>

#include "src/study/gemm/wave.h"

namespace overlace::study {

struct GemmPoint {
  GemmShape shape;
  double time_us = 0;
};

/// Least squares of the relative errors over six constants. Errc::invalid_argument for fewer than six points, or a time
/// that is not positive.
base::Result<GemmConstants> fit_gemm(const GemmMachine& machine, const std::vector<GemmPoint>& points);

}  // namespace overlace::study
