// Streams and events of one program on one device.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <map>
#include <vector>

#include "overlace/tensor.h"
#include "src/base/status.h"
#include "src/spec/expand.h"

namespace overlace::exec {

base::Status cuda_status(cudaError_t error, const char* call);

/// Makes `device` current for a scope.
class DeviceScope {
 public:
  explicit DeviceScope(int device) : device_(device) {
    (void)cudaGetDevice(&before_);
    if (before_ != device_) (void)cudaSetDevice(device_);
  }
  ~DeviceScope() {
    if (before_ != device_) (void)cudaSetDevice(before_);
  }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  int device_, before_ = -1;
};

/// Copies `from` to `to`, tensors of one shape with 1 or 2 dimensions, in stream order.
base::Status copy_view(const TensorView& from, const TensorView& to, cudaStream_t stream);
/// Zeros; (rows, cols), columns touch.
base::Status clear_rows(const TensorView& t, cudaStream_t stream);

/// Side streams of a channel, one per copy lane, made at first use and shared by its programs. Higher priority than the
/// caller's stream, so that a transfer that became ready is not held back.
class LaneStreams {
 public:
  ~LaneStreams();
  /// sm lanes are the caller's stream; they never get one of these.
  base::Status get(const spec::Lane& lane, cudaStream_t* out);
  /// Waits for what was queued on all of them.
  base::Status synchronize() const;

 private:
  std::map<spec::Lane, cudaStream_t> streams_;
};

/// Events without timing, one per instance that somebody on another stream waits for.
class Events {
 public:
  explicit Events(size_t count) : events_(count, nullptr) {}
  ~Events();
  Events(const Events&) = delete;
  Events& operator=(const Events&) = delete;
  void grow(size_t count) { events_.resize(count, nullptr); }
  /// Makes event `i` if needed. Not inside capture.
  base::Status make(size_t i);
  cudaEvent_t operator[](size_t i) const { return events_[i]; }

 private:
  std::vector<cudaEvent_t> events_;
};

}  // namespace overlace::exec
