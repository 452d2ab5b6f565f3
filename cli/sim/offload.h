// `overlace sim graph offload`: passes over layers that do not fit, as they are planned.
#pragma once

#include <string>

#include "cli/plan/offload.h"

namespace overlace::cli {

struct OffloadGraphWords : PlanOffloadWords {
  int passes = 8, slots = 2;
  std::string trace;
};

/// Rows for weights that are brought when they are needed, ahead of their use, and for weights that take no time to
/// bring; exit code. Throws what planned_offload() throws.
int sim_graph_offload(const OffloadGraphWords& words);

}  // namespace overlace::cli
