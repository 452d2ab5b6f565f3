#include "cli/run/check.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "src/base/format.h"
#include "src/base/status.h"

namespace overlace::cli {

double relative_error(std::span<const float> got, std::span<const double> oracle) {
  OVERLACE_ASSERT(got.size() == oracle.size());
  double largest = 0, squares = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    if (!std::isfinite(got[i]) || !std::isfinite(oracle[i])) return std::numeric_limits<double>::infinity();
    largest = std::max(largest, std::abs(static_cast<double>(got[i]) - oracle[i]));
    squares += oracle[i] * oracle[i];
  }
  if (largest == 0) return 0;
  const double rms = std::sqrt(squares / static_cast<double>(oracle.size()));
  return rms > 0 ? largest / rms : std::numeric_limits<double>::infinity();
}

double dtype_ulp(DType dtype) {
  switch (dtype) {
    case DType::fp16:
      return 0x1p-10;
    case DType::bf16:
      return 0x1p-7;
    case DType::fp32:
      return 0x1p-23;
    default:
      return 0x1p-52;
  }
}

Verdict judge(double error, double baseline_error, DType dtype, int64_t layers, int64_t depth_k) {
  const double ulp = dtype_ulp(dtype);
  Verdict out;
  out.limit = 2 * baseline_error + ulp;
  // NOTE: coarse on purpose (a wrong element is off by about the rms): roundings of a few dozen operations a layer, and
  // sums of depth_k fp32 products whose error grows with the root of their number.
  const double plausible = 64 * static_cast<double>(layers) *
                           (ulp + 0x1p-24 * std::sqrt(static_cast<double>(std::max<int64_t>(depth_k, 1))));
  if (!std::isfinite(baseline_error)) {
    out.why_not = "the unfused run gave values that are not finite";
  } else if (!std::isfinite(error)) {
    out.why_not = "the overlapped run gave values that are not finite";
  } else if (baseline_error > plausible) {
    out.why_not = base::format("the unfused run's error {:.3g} is more than rounding explains ({:.3g})", baseline_error,
                               plausible);
  } else if (error > out.limit) {
    out.why_not = base::format("the overlapped run's error {:.3g} is above {:.3g}, twice the unfused run's and an ulp",
                               error, out.limit);
  }
  out.ok = out.why_not.empty();
  return out;
}

void judge_choices(double gap, double baseline_error, DType dtype, Verdict* verdict) {
  const double limit = 4 * (baseline_error + dtype_ulp(dtype));
  if (!verdict->ok || gap <= limit) return;
  verdict->ok = false;
  verdict->why_not = base::format(
      "a token's choice of experts misses the best one by {:.3g}, more than rounding explains ({:.3g})", gap, limit);
}

}  // namespace overlace::cli
