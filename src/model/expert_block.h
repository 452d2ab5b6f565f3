// The feed-forward block of a layer with experts, on CPU ranks.
#pragma once

#include <cstdint>

#include "overlace/channel.h"
#include "src/base/status.h"
#include "src/model/config.h"
#include "src/model/layer_weights.h"

namespace overlace::model {

struct ExpertBlockArgs {
  TensorView x;               // (my rows, hidden)
  TensorView out;             // (my rows, hidden) dtype of x
  int32_t* chosen = nullptr;  // (my rows, experts of a token): gets the experts that each row goes to
};

/// Returns how many copies of tokens my experts computed. Router, the experts of the chosen, which may be on other
/// ranks, and the shared expert, whole on every rank. Collective. Rounded as ops::run(channel, MoeArgs) rounds; with a
/// shared expert the sum of the routed ones stays fp32 until what that one gives, rounded once, is added. In a timeline
/// each of the three is a span.
base::Result<int64_t> run_expert_block(Channel& channel, const ModelConfig& config, const Shard& shard,
                                       const LayerWeights& w, const ExpertBlockArgs& args);

}  // namespace overlace::model
