// Where checkpoints of Hugging Face's models keep the weights of a layer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/model/config.h"
#include "src/model/safetensors.h"
#include "src/model/weights.h"

namespace overlace::model {

/// What one tensor of a checkpoint has of a weight's box.
struct StoredPart {
  std::string name;  // behind the layer's number: "mlp.up_proj.weight"
  std::vector<int64_t> shape;
  StoredBox box;
  int64_t offset = 0;  // elements of the weight's box before these
};

/// In the order of the box: one part, but of experts two or one for each of them, and none for none. `are_fused`: a
/// layer's experts lie in two tensors of three dimensions, as a Weight is.
std::vector<StoredPart> stored_parts(const ModelConfig& config, Weight weight, const WeightBox& box,
                                     bool are_fused = false);

/// A tensor that a layer whose experts are fused has, and another has not.
inline constexpr const char* kFusedExperts = "mlp.experts.gate_up_proj";

}  // namespace overlace::model
