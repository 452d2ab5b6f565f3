// Rotary position embedding: the angles, as Hugging Face rounds them.
#pragma once

#include <cstdint>
#include <vector>

#include "src/model/config.h"

namespace overlace::model {

/// head_dim / 2 angles per position, scaled as rope_scaling says; rounded to fp32, for they are part of the model.
std::vector<float> rope_frequencies(const ModelConfig& config);
/// Angle of a position: the fp32 product.
float rope_angle(float frequency, int64_t position);

}  // namespace overlace::model
