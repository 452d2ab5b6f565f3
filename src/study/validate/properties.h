// What every simulation must have, whatever the machine: checked on one.
#pragma once

#include <string>
#include <vector>

#include "overlace/machine.h"
#include "src/base/status.h"

namespace overlace::study {

struct Property {
  std::string name;
  int cases = 0, failures = 0;
  std::string first_failure;  // its case, and what was got
};

/// Schedules of all families, collectives on networks and steps of many GPUs. Errc::not_supported for a machine without
/// costs.
base::Result<std::vector<Property>> check_properties(const spec::Machine& machine);

}  // namespace overlace::study
