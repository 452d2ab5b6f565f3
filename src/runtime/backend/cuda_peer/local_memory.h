// Device memory that no peer reaches, made and filled while other work runs.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <utility>

#include "src/base/status.h"

namespace overlace::runtime::cuda_peer {

/// The current device's stream for all that is set up before a call; lives as long as the process. What is queued there
/// waits for nothing else. NOTE: cudaMalloc, cudaFree, cudaMemcpy and cudaMemset may wait for whatever runs on the
/// device: somebody else's collective may wait there for a peer that waits for this rank.
base::Result<cudaStream_t> setup_stream();

/// Done on return, and visible to every stream.
base::Status fill(void* memory, int byte, size_t bytes);
base::Status upload(void* device, const void* host, size_t bytes);
base::Status download(void* host, const void* device, size_t bytes);

/// From the pool of the device that was current. Nobody may use it any more when it is given back.
class LocalMemory {
 public:
  LocalMemory() = default;
  LocalMemory(LocalMemory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), device_(other.device_), stream_(other.stream_) {}
  LocalMemory& operator=(LocalMemory&& other) noexcept {
    std::swap(data_, other.data_), std::swap(device_, other.device_), std::swap(stream_, other.stream_);
    return *this;
  }
  ~LocalMemory();
  /// Every stream may use it on return. out_of_memory naming `what`.
  static base::Result<LocalMemory> allocate(size_t bytes, const char* what);
  static base::Result<LocalMemory> filled(int byte, size_t bytes, const char* what);
  static base::Result<LocalMemory> copy_of(const void* host, size_t bytes, const char* what);
  /// Left to whom it belongs to: in a forked child, the parent.
  void release() { data_ = nullptr; }
  void* data() const { return data_; }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  /// Only work that is queued behind it on setup_stream() may use it.
  static base::Result<LocalMemory> queue(size_t bytes, const char* what);

  void* data_ = nullptr;
  int device_ = 0;
  cudaStream_t stream_ = nullptr;
};

}  // namespace overlace::runtime::cuda_peer
