// Times of a library's collective by size: one line per protocol.
#pragma once

#include <vector>

#include "src/study/gemm/minimize.h"

namespace overlace::study {

struct ProtocolCurve {
  struct Part {
    double from_bytes = 0;
    Line us;  // of bytes
  };
  std::vector<Part> parts;
  double us(double bytes) const;
};

/// One line per range of sizes; `starts` are their first sizes, the first of them 0. Precondition: two points in each.
ProtocolCurve fit_protocols(const std::vector<double>& bytes, const std::vector<double>& us,
                            const std::vector<double>& starts);

/// Share of a peak that a collective of many steps reaches: ideal / (ideal / efficiency + steps alpha + fixed).
struct TierConstants {
  double efficiency = 1;
  double alpha_us = 0;  // per step
  double fixed_us = 0;  // once: the tier below
};
struct TierPoint {
  double ideal_us = 0, steps = 0;
  double share = 0;
};
double tier_share(const TierConstants& constants, double ideal_us, double steps);
/// Least largest relative error. `has_fixed`: the fixed time is fitted too, else it is 0.
TierConstants fit_tier(const std::vector<TierPoint>& points, bool has_fixed);

}  // namespace overlace::study
