// Which decoder layers to run: read from a Hugging Face config.json or from a shipped one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/status.h"

namespace overlace::model {

enum class Norm { rms, layer };
enum class Activation { swiglu, gelu_tanh, gelu_erf, relu };
enum class Positions { rope, none };  // learned absolute positions are added before the first layer, outside our stack

enum class Scores { softmax, sigmoid };  // of a router's logits

/// What of each layer runs.
enum class Part {
  all,
  moe,  // the block of experts: router, experts, shared ones; layers without experts are left out
};

struct RopeScaling {
  enum class Kind { none, linear, llama3 } kind = Kind::none;
  double factor = 1, low_freq_factor = 1, high_freq_factor = 4;
  int64_t original_max_position = 8192;
};

/// The feed-forward block of a mixture of experts: gated experts without biases, in place of the dense block.
struct Experts {
  int64_t count = 0;            // 0: all blocks are dense
  int64_t per_token = 0;        // experts that a token goes to
  int64_t intermediate = 0;     // of one expert
  int64_t shared = 0;           // intermediate of one more that every token goes to; 0: none
  bool is_shared_gated = true;  // that one is weighted by a gate
  Scores scores = Scores::softmax;
  bool has_bias = false;     // added to the scores for the choice, not for the weights
  int64_t groups = 1;        // of count / groups experts each
  int64_t kept_groups = 1;   // experts of those with the largest sums of their two best keys are chosen among
  bool renormalize = true;   // weights of the chosen experts sum to 1, before scale
  double scale = 1;          // of their weights
  std::vector<bool> layers;  // which have experts; the others' blocks are dense
};

/// The decoder layers' shape; they are alike, but that some may have experts and others not. In Part::moe `layers` are
/// those with experts, and what belongs to attention and norms is left as it is here.
struct ModelConfig {
  std::string name;        // "Llama-3.1-70B" or the file's path
  std::string model_type;  // llama qwen2 qwen3 mistral mixtral qwen2_moe qwen3_moe deepseek_v3 gpt2 gpt3
  Part part = Part::all;
  std::vector<int64_t> numbers;  // of Part::moe: which of the model's layers each one is
  int64_t hidden = 0, layers = 0, heads = 0, kv_heads = 0, head_dim = 0, intermediate = 0;
  Experts experts;  // where all layers have some, intermediate is 0
  Norm norm = Norm::rms;
  double norm_eps = 1e-5;
  Activation activation = Activation::swiglu;
  Positions positions = Positions::rope;
  double rope_theta = 10000;
  RopeScaling rope_scaling;
  bool qkv_bias = false, o_bias = false, mlp_bias = false;
  bool qk_norm = false;         // Qwen3: RMS norm of each q and k head before RoPE
  int64_t sliding_window = 0;   // Mistral: keys further back are masked; 0: none
  bool conv1d_weights = false;  // GPT-2 checkpoints store (in, out)
  bool has_attention() const { return part == Part::all; }
  /// In the model, and so in its checkpoints.
  int64_t number_of(int64_t layer) const { return numbers.empty() ? layer : numbers[static_cast<size_t>(layer)]; }
  bool has_experts() const { return experts.count > 0; }
  bool has_experts(int64_t layer) const { return has_experts() && experts.layers[static_cast<size_t>(layer)]; }
  /// How many of the first `count` layers, or of all if there are fewer, have experts.
  int64_t expert_layers(int64_t count) const {
    const auto last = experts.layers.begin() + (has_experts() ? std::clamp<int64_t>(count, 0, layers) : 0);
    return std::count(experts.layers.begin(), last, true);
  }
  bool gated() const { return activation == Activation::swiglu; }
};

/// `corrupt` or `invalid_argument` with source, key, value got and wanted, or where a model without experts is to run
/// Part::moe; `not_supported` for another architecture, some of which run Part::moe alone.
base::Result<ModelConfig> parse_config(std::string_view json, std::string_view source, Part part = Part::all);
base::Result<ModelConfig> load_config(const std::string& name_or_path, Part part = Part::all);
/// Names of the shipped configurations ("tiny" first).
std::vector<std::string> shipped_configs();

}  // namespace overlace::model
