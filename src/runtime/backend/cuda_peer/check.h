// Foreign codes as Status, and a guard that leaves the caller's device as it was.
#pragma once

#include <cuda_runtime_api.h>

#include "src/base/status.h"

namespace overlace::runtime::cuda_peer {

/// `cuda` with the call and the runtime's text; out_of_memory where that is the cause. Clears the sticky-less last
/// error.
inline base::Status cuda_status(cudaError_t code, const char* call) {
  if (code == cudaSuccess) return {};
  (void)cudaGetLastError();
  const Errc errc = code == cudaErrorMemoryAllocation ? Errc::out_of_memory : Errc::cuda;
  return base::error(errc, "{}: {} ({})", call, cudaGetErrorString(code), cudaGetErrorName(code));
}

/// Makes `device` current for its lifetime.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device) : ok_(cudaGetDevice(&before_) == cudaSuccess) {
    if (ok_ && device != before_) (void)cudaSetDevice(device);
  }
  ~DeviceGuard() {
    if (ok_) (void)cudaSetDevice(before_);
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int before_ = 0;
  bool ok_ = false;
};

}  // namespace overlace::runtime::cuda_peer
