// The fp64 oracle of `overlace run`, beside ranks that wait for it.
#pragma once

#include <functional>
#include <vector>

#include "cli/run/crew.h"
#include "cli/run/plan.h"
#include "overlace/runtime.h"
#include "src/base/status.h"

namespace overlace::cli {

/// Collective; `choices` is rank 0's, as model::oracle() takes it. The result is rank 0's, tokens x hidden. The other
/// ranks wait in short exchanges, so that neither a long oracle reaches their deadline nor a lost rank stays unseen.
/// `on_share` gets what part of the layers is done, on rank 0.
base::Result<std::vector<double>> oracle_in_background(const RunPlan& plan, const std::vector<float>& input,
                                                       Runtime& runtime, TeamCrew& crew, model::ExpertChoices* choices,
                                                       const std::function<void(double)>& on_share);

}  // namespace overlace::cli
