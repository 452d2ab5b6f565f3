// What every record of a bench has in common.
#pragma once

#include <string>
#include <vector>

#include "src/base/json.h"

namespace overlace::bench {

/// "2026-11-21T15:19:18Z"
std::string utc_now();
/// median, p10, p90, min and the samples themselves, all in us. Precondition: at least one sample.
base::Json time_json(const std::vector<double>& samples_us);

}  // namespace overlace::bench
