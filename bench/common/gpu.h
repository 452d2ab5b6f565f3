// One rank's GPU in a bench: memory, bursts between events, clocks.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "overlace/stream.h"
#include "src/base/status.h"

namespace overlace::bench {

/// What NVML says of a GPU at one moment.
struct ClockSample {
  double sm_mhz = 0, memory_mhz = 0, watts = 0, celsius = 0;
  uint64_t throttle = 0;  // bits of nvmlDeviceGetCurrentClocksEventReasons
  bool ok = false;        // false: not readable, the record is flagged `unattested`
};

struct GpuInfo {
  std::string name, driver, cuda;  // "NVIDIA H200", "580.159.04", "13.0"; driver empty where NVML is not readable
  int sms = 0;
  int64_t l2_bytes = 0;
  double power_limit_w = 0;
};

class Gpu {
 public:
  virtual ~Gpu() = default;
  static base::Result<std::unique_ptr<Gpu>> open(int device);
  virtual StreamRef stream() = 0;
  /// Freed with the Gpu, or by release_all.
  virtual base::Result<void*> alloc(size_t bytes) = 0;
  virtual void release_all() = 0;
  virtual base::Status synchronize() = 0;
  virtual base::Status memset(void* data, int byte, size_t bytes) = 0;
  virtual base::Status record_begin() = 0;
  virtual base::Status record_end() = 0;
  /// Microseconds between the two, after synchronising.
  virtual base::Result<double> elapsed_us() = 0;
  /// Captures what `enqueue` puts on the stream into a graph; replay queues it once.
  virtual base::Status capture(const std::function<base::Status()>& enqueue) = 0;
  virtual base::Status replay() = 0;
  virtual ClockSample clocks() = 0;
  virtual GpuInfo describe() = 0;
};

}  // namespace overlace::bench
