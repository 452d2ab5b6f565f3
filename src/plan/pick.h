// Which of several estimated schedules to take.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>
#include <vector>

#include "overlace/plan.h"

namespace overlace::plan {

/// Those of the model that a tier estimates by; none of what was measured.
const spec::Machine::Errors& errors_of(const spec::Machine& machine, Tier tier);

/// Errors of a family against measurements: median, 90th percentile. Where there are none, 10 % and 20 %.
double median_error(const spec::Machine::Errors& errors, const spec::OpSpec& op, std::string_view family);
double p90_error(const spec::Machine::Errors& errors, const spec::OpSpec& op, std::string_view family);

/// Indices into the list. `best` has the smallest estimate, or is within half a percent of it and its family surer; of
/// that family it is the one of least degree that 2 % are not gained over, as models know least of what chunks cost;
/// but none that gains too little over `library` where another gains enough.
/// `chosen` is it, or `library` where the gain is below 2 %. Otherwise errors of families do not count: they are mostly
/// common to all schedules of a shape.
struct Pick {
  size_t best = 0, chosen = 0;
  double gain = 0;  // of the library's time
};
/// None without `library` in the list.
std::optional<Pick> pick(const spec::OpSpec& op, const spec::Machine::Errors& errors,
                         const std::vector<Alternative>& list);

}  // namespace overlace::plan
