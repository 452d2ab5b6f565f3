// An estimate: how long something takes, and why.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace overlace::spec {

/// A time in us, term by term: "ideal" first, then what each loss adds. The terms sum to Estimate::us.
using Waterfall = std::vector<std::pair<std::string, double>>;

/// An estimated time with its band, in us.
struct Estimate {
  double us = 0, lo_us = 0, hi_us = 0;
  Waterfall parts;
};

}  // namespace overlace::spec
