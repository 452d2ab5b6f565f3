// Is the result right? Errors against the fp64 oracle, and what they may be.
#pragma once

#include <span>
#include <string>

#include "overlace/dtype_pod.h"

namespace overlace::cli {

/// Largest |got - oracle| in units of the oracle's rms. Infinite where `got` holds a value that is not finite.
double relative_error(std::span<const float> got, std::span<const double> oracle);

/// Distance of neighbouring values of `dtype` at 1, in units of 1.
double dtype_ulp(DType dtype);

struct Verdict {
  bool ok = false;
  double limit = 0;  // largest error that passes
  std::string why_not;
};

/// The overlapped run may err twice as much as the unfused run of the same precision, plus one ulp at the rms. The
/// unfused run itself may not err more than rounding explains: depth_k is the longest sum of a layer.
Verdict judge(double error, double baseline_error, DType dtype, int64_t layers, int64_t depth_k);

/// Chosen experts may miss the largest logits by what rounding moves two logits: the unfused run's error and an ulp,
/// four times. Keeps a verdict that is not ok.
void judge_choices(double gap, double baseline_error, DType dtype, Verdict* verdict);

}  // namespace overlace::cli
