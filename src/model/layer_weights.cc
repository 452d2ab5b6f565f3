#include "src/model/layer_weights.h"

#include "src/base/ceil_div_pod.h"

namespace overlace::model {

constexpr int64_t kAlignment = 256;  // of each tensor

LayerLayout::LayerLayout(const ModelConfig& config, const Shard& shard, DType dtype, int64_t layer)
    : dtype_(dtype), layer_(layer) {
  const auto place = [&](TensorView LayerWeights::*tensor, std::initializer_list<Weight> weights) {
    add(config, shard, tensor, weights);
  };
  place(&LayerWeights::norm1, {Weight::norm1});
  place(&LayerWeights::norm1_bias, {Weight::norm1_bias});
  place(&LayerWeights::qkv, {Weight::q, Weight::k, Weight::v});
  place(&LayerWeights::qkv_bias, {Weight::q_bias, Weight::k_bias, Weight::v_bias});
  place(&LayerWeights::q_norm, {Weight::q_norm});
  place(&LayerWeights::k_norm, {Weight::k_norm});
  place(&LayerWeights::o, {Weight::o});
  place(&LayerWeights::o_bias, {Weight::o_bias});
  place(&LayerWeights::norm2, {Weight::norm2});
  place(&LayerWeights::norm2_bias, {Weight::norm2_bias});
  place(&LayerWeights::up, {Weight::gate, Weight::up});
  place(&LayerWeights::up_bias, {Weight::gate_bias, Weight::up_bias});
  place(&LayerWeights::down, {Weight::down});
  place(&LayerWeights::down_bias, {Weight::down_bias});
  place(&LayerWeights::router, {Weight::router});
  place(&LayerWeights::expert_up, {Weight::expert_up});
  place(&LayerWeights::expert_down, {Weight::expert_down});
  place(&LayerWeights::shared_up, {Weight::shared_gate, Weight::shared_up});
  place(&LayerWeights::shared_down, {Weight::shared_down});
  place(&LayerWeights::shared_router, {Weight::shared_router});
  place(&LayerWeights::router_bias, {Weight::router_bias});
}

/// The parts, of one dtype, one below the other (vectors: one beside the other) in one tensor.
void LayerLayout::add(const ModelConfig& config, const Shard& shard, TensorView LayerWeights::*tensor,
                      std::initializer_list<Weight> weights) {
  const DType dtype = weight_dtype(*weights.begin(), dtype_);
  const auto element = static_cast<int64_t>(dtype_bytes(dtype));
  Place place{tensor, dtype, bytes_, 0, 0};
  for (const Weight weight : weights) {
    if (!has_weight(config, weight, layer_)) continue;
    const WeightBox box = shard_box(config, shard, weight);
    parts_.push_back({weight, box, bytes_});
    bytes_ += box.rows * box.cols * element;
    place.rows = is_matrix(weight) ? place.rows + box.rows : 1;
    place.cols = is_matrix(weight) ? box.cols : place.cols + box.cols;
  }
  if (place.rows == 0) return;
  places_.push_back(place);
  bytes_ = base::round_up(bytes_, kAlignment);
}

LayerWeights LayerLayout::at(void* block) const {
  LayerWeights out;
  for (const Place& place : places_)
    out.*place.tensor =
        TensorView::contiguous(static_cast<char*>(block) + place.offset, place.dtype, {place.rows, place.cols});
  return out;
}

TensorView LayerLayout::view_of(const Part& part, void* block) const {
  return TensorView::contiguous(static_cast<char*>(block) + part.offset, weight_dtype(part.weight, dtype_),
                                {part.box.rows, part.box.cols});
}

base::Status LayerLayout::read(Weights& weights, int64_t layer, std::byte* block,
                               std::span<const std::span<const std::byte>> stored) const {
  for (size_t i = 0; i < parts_.size(); ++i) {
    const std::byte* from = stored.empty() ? nullptr : stored[i].data();
    OVERLACE_TRY(weights.read(layer, parts_[i].weight, parts_[i].box, block + parts_[i].offset, from));
  }
  return {};
}

}  // namespace overlace::model
