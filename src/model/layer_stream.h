// Weights of layers that do not fit: which stay, which pass through slots, and the stream of the latter.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "src/base/status.h"
#include "src/base/trace.h"
#include "src/model/device.h"
#include "src/model/layer_weights.h"
#include "src/offload/block_stream.h"

namespace overlace::model {

/// On a device, for layers that stream, and for residual streams that rest.
inline constexpr int kSlots = 2;

/// Tokens that walk through a layer together, and this rank's rows of them.
struct MicroBatch {
  int64_t tokens = 0;
  int64_t first_row = 0, rows = 0;  // of all tokens; mine
  int64_t at = 0;                   // of my rows, those before
};
/// In order; all but the last have as many tokens as the problem says.
std::vector<MicroBatch> micro_batches(const Problem& problem, int rank, int ranks);

/// What a rank's layers and activations take, and where they lie.
struct Placement {
  int64_t layer_bytes = 0;
  int64_t activation_bytes = 0;   // on the device
  int64_t resting_bytes = 0;      // of residual streams and their input, in host memory; 0: they lie on the device
  std::vector<bool> is_resident;  // by layer; those that are not stream through two slots
  int64_t streamed() const;
};
/// What Stack allocates on the device besides weights. `rests`: of residual streams there are two slots.
int64_t activation_bytes(const ModelConfig& config, const Problem& problem, const Shard& shard, bool rests = false);
/// Residual streams rest in host memory where two slots of a layer do not fit beside them, and fewer bytes are taken
/// so. out_of_memory with the smallest device memory that works, where two slots do not fit then either. What is left
/// beside two slots keeps whole layers, evenly among the others.
base::Result<Placement> place_layers(const ModelConfig& config, const Problem& problem, const Shard& shard);

struct WeightStats {
  int64_t resident_layers = 0, streamed_layers = 0, layer_bytes = 0, passes = 0;
  double transfer_s = 0;  // to fill slots, beside the layers: the longer of reading and copying, where both go on
  double waited_s = 0;    // by the layers, for slots
  double disk_s = 0;      // of transfer_s, by whoever fills, for the disk
};

/// Layers one after the other, over and over, each filled into a slot while those before it are used. Slots are memory
/// of the device. Where it has a lane of copies, a fill queues the copy from pinned memory and does not wait for it:
/// the copy comes behind the computation that used its slot, and computation behind the copy, by events.
class LayerStream {
 public:
  /// A stream of the layers that `placement` does not keep, from host memory, which is filled here, or from the files.
  /// `device` outlives the stream. `timeout_ms`: longest that a layer may take; 0: OVERLACE_TIMEOUT_S. `on_layer` is
  /// called behind each layer that is filled here.
  static base::Result<std::unique_ptr<LayerStream>> open(const ModelConfig& config, const Problem& problem,
                                                         const LayerLayout& layout, const Placement& placement,
                                                         Device& device, int64_t timeout_ms = 0,
                                                         const std::function<void()>& on_layer = {});
  /// Waits for what is under way. What computes with a layer must have ended.
  ~LayerStream();
  LayerStream(const LayerStream&) = delete;
  LayerStream& operator=(const LayerStream&) = delete;

  /// The next of the order, for what is queued from now on. Blocks until the layer is there, or its copy is queued.
  base::Result<LayerWeights> acquire(int64_t layer);
  /// Behind all that uses the layer and is queued.
  base::Status release(int64_t layer);
  void add_to(WeightStats* stats) const;
  /// Spans of lane "io 0", in order, since the last call; of many the first ones. CopyLane::take_spans of a device.
  base::Result<std::vector<base::Span>> take_transfers();

 private:
  LayerStream(const LayerLayout& layout, Weights weights, Device& device)
      : layout_(layout), weights_(std::move(weights)), device_(device) {}
  base::Status make_slots(bool from_disk);
  base::Status rest(const std::vector<int64_t>& layers, const std::function<void()>& on_layer);
  base::Status fill_resting(int64_t layer);
  base::Status open_disk(const std::vector<int64_t>& layers, const std::vector<int>& order, int64_t timeout_ms);
  base::Status fill(int64_t layer, std::span<std::byte> slot);
  base::Status bring(int64_t layer, std::span<std::byte> slot);
  base::Status read(int64_t layer, std::span<std::byte> slot);
  base::Status copy(int64_t layer, std::span<std::byte> slot);
  int number_of(int64_t layer) const { return number_[static_cast<size_t>(layer)]; }
  int64_t slot_bytes() const;
  /// The slot of a block that lies in the device's slots.
  int64_t slot_of(const std::byte* block) const { return (block - slots_.data()) / slot_bytes(); }

  const LayerLayout layout_;
  Weights weights_;  // from opening on the filling thread has it alone
  Device& device_;
  std::vector<int> number_;              // by layer, in the stream; -1: resident
  std::vector<std::byte*> resting_;      // the streamed layers, where they come from host memory
  std::span<std::byte> slots_;           // of a device with a lane
  std::vector<std::byte*> staging_;      // of each slot, pinned, where layers come from files to such a device
  std::deque<const std::byte*> in_use_;  // where the layers in use lie, the first first
  std::mutex transfers_mutex_;
  std::vector<base::Span> transfers_;
  std::atomic<int64_t> brought_ns_ = 0;           // that the filling thread brought layers into memory of the host
  std::atomic<int64_t> disk_ns_ = 0;              // of that, waited for the disk
  bool has_entered_ = false;                      // the filling thread, the lane
  std::unique_ptr<CopyLane> lane_;                // none where slots are memory of the host
  std::unique_ptr<offload::BlockStream> disk_;    // raw ranges of the files; the filling thread has it alone
  std::unique_ptr<offload::BlockStream> stream_;  // last: its thread uses what is above
};

}  // namespace overlace::model
