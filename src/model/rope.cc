#include "src/model/rope.h"

#include <cmath>
#include <numbers>

namespace overlace::model {

std::vector<float> rope_frequencies(const ModelConfig& config) {
  const RopeScaling& scaling = config.rope_scaling;
  const auto half = static_cast<size_t>(config.head_dim / 2);
  std::vector<float> frequencies(half);
  for (size_t i = 0; i < half; ++i) {
    const double exponent = 2 * static_cast<double>(i) / static_cast<double>(config.head_dim);
    const float plain =
        1.0f / static_cast<float>(std::pow(config.rope_theta, static_cast<double>(static_cast<float>(exponent))));
    const double f = static_cast<double>(plain);
    double scaled = f;
    if (scaling.kind == RopeScaling::Kind::linear) scaled = f / scaling.factor;
    if (scaling.kind == RopeScaling::Kind::llama3) {
      // Long waves are stretched by the factor, short ones kept, those between blended linearly in turns per context.
      const double turns = static_cast<double>(scaling.original_max_position) * f / (2 * std::numbers::pi);
      const double blend = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor);
      const double keep = std::fmin(std::fmax(blend, 0.0), 1.0);
      scaled = (1 - keep) * f / scaling.factor + keep * f;
    }
    frequencies[i] = static_cast<float>(scaled);
  }
  return frequencies;
}

float rope_angle(float frequency, int64_t position) { return frequency * static_cast<float>(position); }

}  // namespace overlace::model
