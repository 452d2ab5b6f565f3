// Order statistics of samples.
#pragma once

#include <span>

namespace overlace::base {

/// Middle value, or the mean of the two middle ones. Precondition: not empty (else Internal).
double median(std::span<const double> samples);
/// Linear between closest ranks; `percent` from 0 (smallest) to 100 (largest). Precondition: not empty.
double percentile(std::span<const double> samples, double percent);

}  // namespace overlace::base
