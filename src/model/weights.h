// Values of a model's weights: from a checkpoint or from a seed, any part of any tensor.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/status.h"
#include "src/model/config.h"
#include "src/model/safetensors.h"
#include "src/model/stack.h"
#include "src/model/weights_pod.h"

namespace overlace::model {

/// Tensors of a layer as matrices (out, in); vectors have one row. fc1 of an ungated MLP is `up`, fc2 is `down`.
enum class Weight {
  norm1,
  norm1_bias,
  q,
  q_bias,
  k,
  k_bias,
  v,
  v_bias,
  q_norm,
  k_norm,
  o,
  o_bias,
  norm2,
  norm2_bias,
  gate,
  gate_bias,
  up,
  up_bias,
  down,
  down_bias,
  router,       // (experts, hidden)
  expert_up,    // of each expert its gate rows, then its up rows
  expert_down,  // of each expert (hidden, its intermediate)
  shared_gate,  // of the shared expert, as gate, up and down
  shared_up,
  shared_down,
  shared_router,  // (1, hidden): the sigmoid of its product with a token is the shared expert's weight
  router_bias,    // (1, experts), fp32 in any dtype of the problem: of the choice alone
};

/// Rows and columns of a weight, from a first row and column on.
struct WeightBox {
  int64_t row = 0, rows = 0, col = 0, cols = 0;
};

/// Neither a norm nor a bias.
bool is_matrix(Weight weight);
/// In which a weight is held where others are of `dtype`.
DType weight_dtype(Weight weight, DType dtype);
/// The whole weight.
WeightBox weight_shape(const ModelConfig& config, Weight weight);
bool has_weight(const ModelConfig& config, Weight weight, int64_t layer = 0);

class Weights {
 public:
  static base::Result<Weights> open(const ModelConfig& config, const Problem& problem);
  /// Made from the seed: nothing to read, a device can make any part itself (box is applied).
  bool is_seeded() const { return !checkpoint_; }
  SeededMatrix seeded(int64_t layer, Weight weight, const WeightBox& box) const;
  /// Part `box` in its weight_dtype() into `out`, contiguous.
  /// `stored`: the bytes of range(), already read; null: the file is looked into.
  base::Status read(int64_t layer, Weight weight, const WeightBox& box, void* out, const void* stored = nullptr);
  /// What of the files the part needs. Only of a checkpoint, and not_supported of experts in tensors of their own.
  base::Result<StoredRange> range(int64_t layer, Weight weight, const WeightBox& box);

 private:
  Weights(const ModelConfig& config, const Problem& problem) : config_(config), problem_(problem) {}
  std::string full_name(int64_t layer, std::string_view name) const;

  ModelConfig config_;
  Problem problem_;
  std::optional<Checkpoint> checkpoint_;
  std::string prefix_;  // "model.layers." or "layers.", "transformer.h." or "h."
  bool has_fused_experts_ = false;
};

/// Part of a made matrix on the host, contiguous rows x cols of `dtype`.
void fill_seeded(const SeededMatrix& matrix, int64_t rows, int64_t cols, DType dtype, void* out);

}  // namespace overlace::model
