#include "src/model/weights.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "src/base/half.h"
#include "src/model/weight_names.h"

namespace overlace::model {
namespace {

using base::error;
using base::Result;
using base::Status;

constexpr float kVectorScale = 0.125f;  // norm weights are 1 + n/8, biases n/8: exact in fp32
constexpr uint64_t kInputTensor = ~uint64_t{0};

bool is_norm_weight(Weight w) {
  return w == Weight::norm1 || w == Weight::norm2 || w == Weight::q_norm || w == Weight::k_norm;
}

bool is_of_experts(Weight w) {
  switch (w) {
    case Weight::router:
    case Weight::router_bias:
    case Weight::expert_up:
    case Weight::expert_down:
    case Weight::shared_gate:
    case Weight::shared_up:
    case Weight::shared_down:
    case Weight::shared_router:
      return true;
    default:
      return false;
  }
}

}  // namespace

DType weight_dtype(Weight weight, DType dtype) { return weight == Weight::router_bias ? DType::fp32 : dtype; }

bool is_matrix(Weight w) {
  switch (w) {
    case Weight::q:
    case Weight::k:
    case Weight::v:
    case Weight::o:
    case Weight::gate:
    case Weight::up:
    case Weight::down:
      return true;
    default:
      return is_of_experts(w) && w != Weight::router_bias;
  }
}

WeightBox weight_shape(const ModelConfig& c, Weight weight) {
  const int64_t q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim;
  switch (weight) {
    case Weight::q:
      return {0, q, 0, c.hidden};
    case Weight::q_bias:
      return {0, 1, 0, q};
    case Weight::k:
    case Weight::v:
      return {0, kv, 0, c.hidden};
    case Weight::k_bias:
    case Weight::v_bias:
      return {0, 1, 0, kv};
    case Weight::q_norm:
    case Weight::k_norm:
      return {0, 1, 0, c.head_dim};
    case Weight::o:
      return {0, c.hidden, 0, q};
    case Weight::gate:
    case Weight::up:
      return {0, c.intermediate, 0, c.hidden};
    case Weight::gate_bias:
    case Weight::up_bias:
      return {0, 1, 0, c.intermediate};
    case Weight::down:
      return {0, c.hidden, 0, c.intermediate};
    case Weight::router:
      return {0, c.experts.count, 0, c.hidden};
    case Weight::router_bias:
      return {0, 1, 0, c.experts.count};
    case Weight::expert_up:
      return {0, c.experts.count * 2 * c.experts.intermediate, 0, c.hidden};
    case Weight::expert_down:
      return {0, c.experts.count * c.hidden, 0, c.experts.intermediate};
    case Weight::shared_gate:
    case Weight::shared_up:
      return {0, c.experts.shared, 0, c.hidden};
    case Weight::shared_down:
      return {0, c.hidden, 0, c.experts.shared};
    default:  // norms, the biases of o and down, and shared_router
      return {0, 1, 0, c.hidden};
  }
}

bool has_weight(const ModelConfig& c, Weight weight, int64_t layer) {
  if (!c.has_attention() && !is_of_experts(weight)) return false;
  switch (weight) {
    case Weight::norm1_bias:
    case Weight::norm2_bias:
      return c.norm == Norm::layer;
    case Weight::q_bias:
    case Weight::k_bias:
    case Weight::v_bias:
      return c.qkv_bias;
    case Weight::q_norm:
    case Weight::k_norm:
      return c.qk_norm;
    case Weight::o_bias:
      return c.o_bias;
    case Weight::gate:
      return c.gated() && !c.has_experts(layer);
    case Weight::up:
    case Weight::down:
      return !c.has_experts(layer);
    case Weight::gate_bias:
      return c.gated() && c.mlp_bias && !c.has_experts(layer);
    case Weight::up_bias:
    case Weight::down_bias:
      return c.mlp_bias && !c.has_experts(layer);
    case Weight::router:
    case Weight::expert_up:
    case Weight::expert_down:
      return c.has_experts(layer);
    case Weight::router_bias:
      return c.has_experts(layer) && c.experts.has_bias;
    case Weight::shared_gate:
    case Weight::shared_up:
    case Weight::shared_down:
      return c.has_experts(layer) && c.experts.shared > 0;
    case Weight::shared_router:
      return c.has_experts(layer) && c.experts.shared > 0 && c.experts.is_shared_gated;
    default:
      return true;
  }
}

Result<Weights> Weights::open(const ModelConfig& config, const Problem& problem) {
  Weights weights(config, problem);
  if (problem.checkpoint.empty()) return weights;
  auto checkpoint = Checkpoint::open(problem.checkpoint);
  if (!checkpoint.ok()) return checkpoint.status();
  const bool gpt2 = config.conv1d_weights;
  const std::string first = gpt2 ? "transformer.h." : "model.layers.", second = gpt2 ? "h." : "layers.";
  const auto& with_experts = config.experts.layers;
  const int64_t layer = std::find(with_experts.begin(), with_experts.end(), true) - with_experts.begin();
  // By a tensor that every layer has.
  const Weight sign = config.has_attention() ? Weight::norm1 : Weight::router;
  std::string names[2];
  for (size_t i = 0; i < 2; ++i) {
    weights.prefix_ = i == 0 ? first : second;
    weights.has_fused_experts_ =
        config.has_experts() && checkpoint->has(weights.full_name(layer, std::string(kFusedExperts)));
    const auto parts = stored_parts(config, sign, weight_shape(config, sign), weights.has_fused_experts_);
    names[i] = weights.full_name(0, parts.front().name);
    if (checkpoint->has(names[i])) break;
    if (i == 1)
      return error(Errc::corrupt, "checkpoint {}: neither tensor \"{}\" nor \"{}\" is there, wanted a {} model",
                   problem.checkpoint, names[0], names[1], config.model_type);
  }
  weights.checkpoint_ = std::move(*checkpoint);
  return weights;
}

SeededMatrix Weights::seeded(int64_t layer, Weight weight, const WeightBox& box) const {
  SeededMatrix m;
  m.key =
      tensor_key(problem_.seed, static_cast<uint64_t>(config_.number_of(layer)) * 64 + static_cast<uint64_t>(weight));
  const WeightBox shape = weight_shape(config_, weight);
  m.scale = is_matrix(weight) ? static_cast<float>(1 / std::sqrt(static_cast<double>(shape.cols))) : kVectorScale;
  m.offset = is_norm_weight(weight) ? 1 : 0;
  m.first_row = box.row;
  m.first_col = box.col;
  return m;
}

std::string Weights::full_name(int64_t layer, std::string_view name) const {
  return base::format("{}{}.{}", prefix_, config_.number_of(layer), name);
}

Status Weights::read(int64_t layer, Weight weight, const WeightBox& box, void* out, const void* range) {
  const DType dtype = weight_dtype(weight, problem_.dtype);
  if (is_seeded()) {
    fill_seeded(seeded(layer, weight, box), box.rows, box.cols, dtype, out);
    return {};
  }
  const auto element = static_cast<int64_t>(dtype_bytes(dtype));
  for (const StoredPart& part : stored_parts(config_, weight, box, has_fused_experts_)) {
    char* const to = static_cast<char*>(out) + part.offset * element;
    OVERLACE_TRY(checkpoint_->read(full_name(layer, part.name), part.shape, part.box, dtype, to, range));
  }
  return {};
}

Result<StoredRange> Weights::range(int64_t layer, Weight weight, const WeightBox& box) {
  if (is_seeded()) return base::invalid_argument("weights are made from a seed, wanted a checkpoint");
  const std::vector<StoredPart> parts = stored_parts(config_, weight, box, has_fused_experts_);
  const bool of_experts = weight == Weight::expert_up || weight == Weight::expert_down;
  if (of_experts && !has_fused_experts_)
    return error(Errc::not_supported,
                 "a weight of layer {} lies in {} tensors, one for each matrix of an expert, wanted one for the layer",
                 layer, parts.size());
  return checkpoint_->range(full_name(layer, parts.front().name), parts.front().shape, parts.front().box);
}

void fill_seeded(const SeededMatrix& matrix, int64_t rows, int64_t cols, DType dtype, void* out) {
  std::vector<float> values(static_cast<size_t>(cols));
  auto* bytes = static_cast<char*>(out);
  for (int64_t i = 0; i < rows; ++i) {
    const uint64_t row = row_key(matrix.key, matrix.first_row + i);
    for (int64_t j = 0; j < cols; ++j) values[static_cast<size_t>(j)] = seeded_value(matrix, row, j);
    base::convert_from_float(values.data(), bytes + i * cols * static_cast<int64_t>(dtype_bytes(dtype)), dtype, cols);
  }
}

void seeded_input(uint64_t seed, int64_t first_row, int64_t rows, int64_t hidden, float* out) {
  SeededMatrix m;
  m.key = tensor_key(seed, kInputTensor);
  m.first_row = first_row;
  fill_seeded(m, rows, hidden, DType::fp32, out);
}

}  // namespace overlace::model
