// The models beside what others published.
#pragma once

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "src/base/json.h"
#include "src/study/validate/golden.h"

namespace overlace::study {

inline constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

struct ValidationRow {
  std::string id, figure, unit;
  double published = kNone;  // none: what is compared is an error over many points
  double ours = 0;
  double least = 0, most = 0;  // accepted
  double baseline = kNone;     // of the model that does nothing: peak rates, no latency, no contention
  bool is_must = true;
  bool passes() const { return ours >= least && ours <= most; }
};

/// Rows of the figures `ids` (all if empty) from the tables below `golden`. Errc::invalid_argument for an unknown id,
/// io or corrupt for a table.
base::Result<std::vector<ValidationRow>> validate(const std::string& golden, const std::vector<std::string>& ids);
/// V1, V2, ...
std::vector<std::string> validation_ids();

std::string validation_table(const std::vector<ValidationRow>& rows);
/// The rows as a page of documentation (docs/results/simulator.md).
std::string validation_page(const std::vector<ValidationRow>& rows);
base::Json validation_json(const std::vector<ValidationRow>& rows);
/// Whether a row that must pass does not.
bool has_required_miss(const std::vector<ValidationRow>& rows);

}  // namespace overlace::study
