// Tier probe of the planner: candidates run for real by ranks that are threads of this process.
#pragma once

#include <memory>
#include <string>

#include "overlace/plan.h"

namespace overlace::cli {

/// Opens as many ranks as the operator has, on the backend of the machine, and plans on all of them, with the figures
/// of the machine, but for the compute capability of the GPUs that are here; PlanMismatch where ranks differ.
/// Unsupported where the machine has GPUs and this one has not that many.
std::shared_ptr<const plan::Plan> plan_by_probe(const spec::OpSpec& op, const spec::Machine& machine,
                                                const plan::PlanOptions& options, const std::string& cache);

}  // namespace overlace::cli
