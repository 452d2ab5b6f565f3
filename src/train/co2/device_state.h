// The state of the outer step in memory of a GPU, and what a boundary queues on a stream: the host decides nothing and
// waits for nothing, it learns later what came of it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "overlace/stream.h"
#include "src/train/co2/buckets.h"
#include "src/train/co2/pass.h"

namespace overlace::train {

struct DeviceStateOptions {
  int device = 0;
  void* stream = nullptr;  // cudaStream_t; that of the first calls
  DType wire_dtype = DType::fp32;
  bool has_momentum = false, has_kept = false, has_residual = false;
  std::vector<PassTensor> tensors;  // x: device memory
  std::vector<BucketRange> buckets;
  std::vector<TensorPod> bounds;
};

/// A stretch of the stream, in ns of now_ns().
struct DeviceSpan {
  enum class Kind { steps, wait, pass, other } kind = Kind::other;  // of what lies before it: see DeviceState::mark
  int64_t begin_ns = 0, end_ns = 0;
};
struct DeviceReport {
  FactsPod facts;
  std::vector<DeviceSpan> spans;
};

/// The state as a checkpoint has it, in host memory of the right sizes.
struct StateImage {
  ControlPod& control;
  HeaderPod &own, &sum;
  std::span<TensorPod> bounds;
  std::span<SumsPod> sums;
  std::span<float> anchor, momentum, kept, residual;
  std::span<char> wire, parameters;
};

/// Calls queue work on the stream of now, but for those that say that they wait; throws what CUDA reports.
class DeviceState {
 public:
  virtual ~DeviceState() = default;
  /// Work of later calls is behind all that was queued here.
  virtual void use(void* stream) = 0;
  virtual StreamRef stream() const = 0;
  virtual char* wire() = 0;
  virtual float* residual() = 0;
  virtual HeaderPod* sum() = 0;  // the header as it is sent, and reduced in place

  virtual void reset_anchor() = 0;
  virtual void begin(const KnobsPod& knobs, bool has_incoming) = 0;
  virtual void pass(PassMode mode, float groups, int bucket) = 0;
  /// Waits: `reduce` adds up over the group, on the host.
  virtual void reduce_sums(const std::function<void(std::span<double>)>& reduce, int64_t timeout_ms) = 0;
  virtual void end(const KnobsPod& knobs) = 0;
  virtual void header(const HeaderPod& base, bool compares_anchor) = 0;
  virtual void restore_if_dropped() = 0;
  virtual void forget_sums() = 0;

  /// What was queued since the mark before was of this kind.
  virtual void mark(DeviceSpan::Kind kind) = 0;
  /// Facts and marks up to here become a report.
  virtual void report() = 0;
  /// Waits for the oldest report that was not taken.
  virtual DeviceReport take_report() = 0;

  /// Waits. Sums that travel: of the host in device memory of their own, and back.
  virtual double* upload_words(std::span<const double> words) = 0;
  virtual void download_words(std::span<double> words) = 0;
  /// Waits. By tensor, of the parameters' bits.
  virtual std::vector<uint64_t> hashes() = 0;
  virtual uint64_t anchor_hash() = 0;
  virtual void read_anchor(std::span<float> anchor) = 0;
  virtual void download(const StateImage& image) = 0;
  virtual void upload(const StateImage& image) = 0;
  /// All memory stays with the process, and the destructor does not wait: something may still write to what travels,
  /// and work that the stream has not come to may lie behind that.
  virtual void leave_memory() = 0;
};

/// Throws NotSupported in a build without CUDA, InvalidArgument for memory that is not of the device.
std::unique_ptr<DeviceState> open_device_state(const DeviceStateOptions& options);

}  // namespace overlace::train
