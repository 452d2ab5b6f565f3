#include "src/model/activation_stream.h"

#include <utility>

#include "src/base/half.h"
#include "src/model/cpu/host_lane.h"

namespace overlace::model {
namespace {

using base::Result;
using base::Status;

using Queue = CopyLane::Queue;

// Events of a lane, of each slot: behind the copy into it, and behind the computation that used it.
constexpr int came_in(int64_t slot) { return static_cast<int>(slot); }
constexpr int computed(int64_t slot) { return kSlots + static_cast<int>(slot); }

enum HostBlock : size_t { kInput, kResting };

/// What has still to be timed.
base::Span span_of_move(size_t batch, const char* way, int64_t bytes) {
  base::Span span;
  span.lane = "io 1";
  span.name = base::format("micro-batch {} {}", batch, way);
  span.category = "other";  // no communication between ranks
  span.bytes = bytes;
  return span;
}

}  // namespace

Result<std::unique_ptr<ActivationStream>> ActivationStream::open(Device& device, std::vector<MicroBatch> batches,
                                                                 int64_t layers, const TensorView& slots) {
  auto out = std::unique_ptr<ActivationStream>(new ActivationStream(device, std::move(batches), layers, slots));
  auto lane = device.make_copy_lane(2 * kSlots);
  if (!lane.ok()) return lane.status();
  out->lane_ = *lane == nullptr ? cpu::make_host_lane() : std::move(*lane);
  const int64_t bytes = out->stats().resting_bytes / std::ssize(out->blocks_);
  for (std::byte*& block : out->blocks_) {
    const auto made = device.alloc_host(bytes, "residual streams of micro-batches");
    if (!made.ok()) return made.status();
    block = static_cast<std::byte*>(*made);
  }
  return out;
}

ActivationStream::~ActivationStream() {
  lane_.reset();  // no copy from here on
  for (std::byte* block : blocks_)
    if (block != nullptr) device_.free_host(block);
}

TensorView ActivationStream::slot_of(int64_t use) const {
  return slots_.rows(use % kSlots * batches_.front().rows, batches_[batch_of(use)].rows);
}

/// Queues the copy into the slot, behind the copy of what was there before to where that rests.
Status ActivationStream::bring(int64_t use) {
  const size_t batch = batch_of(use);
  const std::byte* const from = blocks_[layer_of(use) == 0 ? kInput : kResting] + bytes_of(batches_[batch].at);
  const int64_t bytes = bytes_of(batches_[batch].rows);
  OVERLACE_TRY(lane_->copy(from, slot_of(use).data, bytes, span_of_move(batch, "in", bytes)));
  return lane_->record(Queue::copies, came_in(use % kSlots));
}

/// Queues the copy to where the stream rests, behind the computation.
Status ActivationStream::leave(int64_t use) {
  const size_t batch = batch_of(use);
  const int64_t bytes = bytes_of(batches_[batch].rows), slot = use % kSlots;
  OVERLACE_TRY(lane_->record(Queue::computation, computed(slot)));
  OVERLACE_TRY(lane_->wait(Queue::copies, computed(slot)));
  return lane_->copy(slot_of(use).data, blocks_[kResting] + bytes_of(batches_[batch].at), bytes,
                     span_of_move(batch, "out", bytes));
}

/// Both ways: the copy out of a slot comes before the one into it. A pass may take longer than a lane's event may.
Status ActivationStream::wait_for_copies() {
  OVERLACE_TRY(device_.synchronize());
  for (int64_t slot = 0; slot < kSlots; ++slot) OVERLACE_TRY(lane_->synchronize(came_in(slot)));
  return {};
}

Status ActivationStream::set_input(const float* rows) {
  OVERLACE_TRY(wait_for_copies());
  const int64_t count = batches_.back().at + batches_.back().rows;
  base::convert_from_float(rows, blocks_[kInput], slots_.dtype, count * slots_.dim(1));
  next_ = 0;
  is_in_use_ = false;
  for (int64_t use = 0; use < kSlots; ++use) OVERLACE_TRY(bring(use));
  return {};
}

Status ActivationStream::get_output(float* rows) {
  OVERLACE_TRY(wait_for_copies());
  const int64_t count = batches_.back().at + batches_.back().rows;
  base::convert_to_float(blocks_[kResting], slots_.dtype, rows, count * slots_.dim(1));
  return {};
}

Result<TensorView> ActivationStream::acquire(int64_t layer, size_t batch) {
  if (is_in_use_ || layer != layer_of(next_) || batch != batch_of(next_))
    return base::error(Errc::desync, "micro-batch {} was asked for in layer {}, wanted micro-batch {} {} layer {}",
                       batch, layer, batch_of(next_), is_in_use_ ? "to be released, it is in use in" : "in",
                       layer_of(next_));
  OVERLACE_TRY(lane_->begin_wait());
  OVERLACE_TRY(lane_->wait(Queue::computation, came_in(next_ % kSlots)));
  is_in_use_ = true;
  return slot_of(next_);
}

Status ActivationStream::release() {
  if (!is_in_use_) return base::error(Errc::desync, "a micro-batch was released, wanted none: none is in use");
  is_in_use_ = false;
  OVERLACE_TRY(leave(next_));
  ++next_;
  return bring(next_ + kSlots - 1);
}

ActivationStats ActivationStream::stats() const {
  const int64_t rows = batches_.back().at + batches_.back().rows;
  const CopyLane::Times times = lane_->times();
  return {std::ssize(blocks_) * bytes_of(rows), times.copied_s, times.waited_s};
}

}  // namespace overlace::model
