// Residual streams of micro-batches that do not fit: they rest in memory of the host and pass through two slots.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "overlace/tensor.h"
#include "src/base/status.h"
#include "src/base/trace.h"
#include "src/model/device.h"
#include "src/model/layer_stream.h"

namespace overlace::model {

struct ActivationStats {
  int64_t resting_bytes = 0;            // of host memory; 0: all activations lie on the device
  double transfer_s = 0, waited_s = 0;  // both ways; that computation waited for it
};

/// The residual stream of one micro-batch after the other, layer by layer, pass behind pass. While one computes in its
/// slot, the one before leaves the other slot and the next one comes into it: copies of a lane, in one queue, ordered
/// with the computation by events. Where the device has no lane, copies are made at once.
class ActivationStream {
 public:
  /// `slots`: on the device, twice the rows of the first micro-batch. `device` outlives the stream.
  static base::Result<std::unique_ptr<ActivationStream>> open(Device& device, std::vector<MicroBatch> batches,
                                                              int64_t layers, const TensorView& slots);
  /// Waits for what is under way. What computes with a slot must have ended.
  ~ActivationStream();
  ActivationStream(const ActivationStream&) = delete;
  ActivationStream& operator=(const ActivationStream&) = delete;

  /// My rows of all micro-batches, which every pass begins with. Waits for passes before; the next use is the first.
  base::Status set_input(const float* rows);
  /// Those rows behind the last layer of the last pass, which has been queued whole. Waits for it.
  base::Status get_output(float* rows);
  /// (its rows, hidden) in a slot, for what is queued from now on. desync for another use than the next one.
  base::Result<TensorView> acquire(int64_t layer, size_t batch);
  /// Behind all that uses what was acquired last and is queued.
  base::Status release();
  ActivationStats stats() const;
  /// Spans of lane "io 1", in order, since the last call; of many the first ones. CopyLane::take_spans of a device.
  base::Result<std::vector<base::Span>> take_transfers() { return lane_->take_spans(); }

 private:
  ActivationStream(Device& device, std::vector<MicroBatch> batches, int64_t layers, const TensorView& slots)
      : device_(device), batches_(std::move(batches)), layers_(layers), slots_(slots) {}
  int64_t bytes_of(int64_t rows) const {
    return rows * slots_.dim(1) * static_cast<int64_t>(dtype_bytes(slots_.dtype));
  }
  size_t batch_of(int64_t use) const { return static_cast<size_t>(use) % batches_.size(); }
  int64_t layer_of(int64_t use) const { return use / std::ssize(batches_) % layers_; }
  TensorView slot_of(int64_t use) const;
  base::Status bring(int64_t use);
  base::Status leave(int64_t use);
  base::Status wait_for_copies();

  Device& device_;
  const std::vector<MicroBatch> batches_;
  const int64_t layers_;
  const TensorView slots_;
  std::array<std::byte*, 2> blocks_{};  // my rows of the host: the input, and where streams rest
  int64_t next_ = 0;                    // use, counted on from the last input
  bool is_in_use_ = false;              // the one before
  std::unique_ptr<CopyLane> lane_;
};

}  // namespace overlace::model
