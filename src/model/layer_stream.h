// Weights of layers that do not fit: which stay, which pass through slots, and the stream of the latter.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "src/base/status.h"
#include "src/base/trace.h"
#include "src/io/alignment.h"
#include "src/model/layer_weights.h"
#include "src/offload/block_stream.h"

namespace overlace::model {

/// Tokens that walk through a layer together, and this rank's rows of them.
struct MicroBatch {
  int64_t tokens = 0;
  int64_t first_row = 0, rows = 0;  // of all tokens; mine
  int64_t at = 0;                   // of my rows, those before
};
/// In order; all but the last have as many tokens as the problem says.
std::vector<MicroBatch> micro_batches(const Problem& problem, int rank, int ranks);

/// What a rank's layers and activations take, and where layers lie.
struct Placement {
  int64_t layer_bytes = 0, activation_bytes = 0;
  std::vector<bool> is_resident;  // by layer; those that are not stream through two slots
  int64_t streamed() const;
};
/// What Stack allocates besides weights.
int64_t activation_bytes(const ModelConfig& config, const Problem& problem, const Shard& shard);
/// out_of_memory with the smallest device memory that works, where two slots of a layer do not fit beside the
/// activations. What is left beside two slots keeps whole layers, evenly among the others.
base::Result<Placement> place_layers(const ModelConfig& config, const Problem& problem, const Shard& shard);

struct WeightStats {
  int64_t resident_layers = 0, streamed_layers = 0, layer_bytes = 0, passes = 0;
  double transfer_s = 0;  // to fill slots, beside the layers
  double waited_s = 0;    // by the layers, for slots
  double disk_s = 0;      // of transfer_s, by whoever fills, for the disk
};

/// Layers one after the other, over and over, each filled into a slot while those before it are used. On CPU ranks.
class LayerStream {
 public:
  /// Of the layers that `placement` does not keep. From host memory, which is filled here, or from the files.
  static base::Result<std::unique_ptr<LayerStream>> open(const ModelConfig& config, const Problem& problem,
                                                         const LayerLayout& layout, const Placement& placement);
  /// Blocks until the layer is there; the next of the order.
  base::Result<LayerWeights> acquire(int64_t layer);
  base::Status release(int64_t layer);
  void add_to(WeightStats* stats) const;
  /// Spans of lane "io 0", in order, since the last call; of many the first ones.
  std::vector<base::Span> take_transfers();

 private:
  LayerStream(const LayerLayout& layout, Weights weights) : layout_(layout), weights_(std::move(weights)) {}
  base::Status rest(const std::vector<int64_t>& layers);
  base::Status open_disk(const std::vector<int64_t>& layers, const std::vector<int>& order);
  base::Status fill(int64_t layer, std::span<std::byte> slot);
  base::Status bring(int64_t layer, std::span<std::byte> slot);

  const LayerLayout layout_;
  Weights weights_;            // from opening on the filling thread has it alone
  std::vector<int> number_;    // by layer, in the stream; -1: resident
  io::AlignedBuffer resting_;  // all streamed layers, where they come from host memory
  std::mutex transfers_mutex_;
  std::vector<base::Span> transfers_;
  std::atomic<int64_t> disk_ns_ = 0;              // that the filling thread waited for the disk
  std::unique_ptr<offload::BlockStream> disk_;    // raw ranges of the files; the filling thread has it alone
  std::unique_ptr<offload::BlockStream> stream_;  // last: its thread uses what is above
};

}  // namespace overlace::model
