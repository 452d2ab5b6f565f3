// How long something takes, and why.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace overlace::spec {

/// A time, term by term: "ideal" first, then what each loss adds; the terms add up to Estimate::us.
using Waterfall = std::vector<std::pair<std::string, double>>;

struct Estimate {
  double us = 0, lo_us = 0, hi_us = 0;
  Waterfall parts;
};

}  // namespace overlace::spec
