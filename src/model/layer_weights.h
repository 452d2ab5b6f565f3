// The tensors of a layer's shard: where they lie in one block of memory, and how that block is filled.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "overlace/tensor.h"
#include "src/base/status.h"
#include "src/model/sharding.h"
#include "src/model/weights.h"

namespace overlace::model {

/// A layer's weights on the device; undefined where the model has none.
struct LayerWeights {
  TensorView norm1, norm1_bias, norm2, norm2_bias;  // (1, hidden)
  TensorView qkv, qkv_bias;                         // (qkv columns, hidden), (1, qkv columns)
  TensorView q_norm, k_norm;                        // (1, head_dim)
  TensorView o, o_bias;                             // (hidden, my heads), (1, hidden)
  TensorView up, up_bias;                           // (up columns, hidden): gate rows, then up rows
  TensorView down, down_bias;                       // (hidden, my intermediate), (1, hidden)
  TensorView router, expert_up, expert_down;        // as Weight has them, but my experts'; undefined without any
  TensorView shared_up, shared_down;                // whole, as up and down
  TensorView shared_router;                         // (1, hidden)
  TensorView router_bias;                           // (1, experts) fp32
};

/// The layout of one layer; layers without experts have the same, and so have those with them.
class LayerLayout {
 public:
  /// One weight of the checkpoint, or rows or columns of it: a tensor of LayerWeights has one to three.
  struct Part {
    Weight weight = Weight::norm1;
    WeightBox box;
    int64_t offset = 0;  // in the block
  };

  LayerLayout(const ModelConfig& config, const Shard& shard, DType dtype, int64_t layer = 0);
  int64_t bytes() const { return bytes_; }
  const std::vector<Part>& parts() const { return parts_; }
  LayerWeights at(void* block) const;
  TensorView view_of(const Part& part, void* block) const;
  /// Fills a block of host memory. `stored`: what Weights::range names of each part, already read; empty: the files are
  /// looked into.
  base::Status read(Weights& weights, int64_t layer, std::byte* block,
                    std::span<const std::span<const std::byte>> stored = {}) const;

 private:
  struct Place {
    TensorView LayerWeights::*tensor;
    DType dtype = DType::fp32;
    int64_t offset = 0, rows = 0, cols = 0;
  };
  void add(const ModelConfig& config, const Shard& shard, TensorView LayerWeights::*tensor,
           std::initializer_list<Weight> weights);

  DType dtype_;
  int64_t layer_;
  int64_t bytes_ = 0;
  std::vector<Place> places_;
  std::vector<Part> parts_;
};

}  // namespace overlace::model
