// `overlace sim graph gnn`: a training epoch from packs, stage beside stage.
#pragma once

#include <string>
#include <vector>

#include "cli/gnn/rates.h"
#include "src/gnn/store/manifest.h"
#include "src/study/workload/gnn.h"

namespace overlace::cli {

struct GnnGraphWords {
  std::string artefact, packs;  // packs: empty, all of train
  GnnRateWords rates;
  std::string json, trace;
};

/// A row per packs of train and way; exit code.
int sim_graph_gnn(const GnnGraphWords& words);

/// What packs of an artefact come to, planned anew from its trace.
gnn::Prediction predicted(const std::string& artefact, const gnn::Manifest& manifest, const gnn::PackEntry& packs);
/// The planner's items as those of the simulator.
std::vector<study::GnnItem> gnn_items(const gnn::Prediction& prediction, const gnn::EpochRates& rates);

}  // namespace overlace::cli
