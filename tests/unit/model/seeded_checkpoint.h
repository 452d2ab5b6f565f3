// A checkpoint that holds what the seed of a problem makes, so that a run from it has the bits of a run without one.
#pragma once

#include <string>
#include <vector>

#include "src/model/weight_names.h"
#include "src/model/weights.h"
#include "tests/unit/model/safetensors_writer.h"

namespace overlace::model {

/// The bytes of model.safetensors, fp32. For families whose weights are each one tensor, stored (out, in).
inline std::string seeded_checkpoint(const ModelConfig& config, Problem problem) {
  problem.checkpoint.clear();
  const Weights weights = Weights::open(config, problem).value();
  std::vector<TestTensor> tensors;
  for (int64_t layer = 0; layer < problem.layers; ++layer) {
    for (int w = 0; w <= static_cast<int>(Weight::down_bias); ++w) {
      const auto weight = static_cast<Weight>(w);
      if (!has_weight(config, weight, layer)) continue;
      const WeightBox box = weight_shape(config, weight);
      const StoredPart part = stored_parts(config, weight, box).front();
      std::vector<float> values(static_cast<size_t>(box.rows * box.cols));
      fill_seeded(weights.seeded(layer, weight, box), box.rows, box.cols, DType::fp32, values.data());
      tensors.push_back(
          {"model.layers." + std::to_string(layer) + "." + part.name, "F32", part.shape, fp32_bytes(values)});
    }
  }
  return safetensors(tensors);
}

}  // namespace overlace::model
