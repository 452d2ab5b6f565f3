// Where a rank of a bench works, a GPU or a CPU thread: memory, data, checks, bursts, clocks.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench/common/normal_pod.h"
#include "overlace/stream.h"
#include "overlace/tensor.h"
#include "src/base/status.h"

namespace overlace::base {
class Json;  // no CUDA unit includes it
}

namespace overlace::bench {

/// One term of the sum that an output element is: sum over k of left(row, k) right(col, k), or left(row, col) itself.
struct Factor {
  Normal left, right;  // (rows, K) and (N, K)
  int64_t k = 0;
  bool is_gated = false;   // of a sum alone: the element is swiglu of those of rows 2 col and 2 col + 1 of right
  bool is_addend = false;  // left(row, col), a matrix (rows, N)
};

struct Check {
  double max_error = 0;  // largest |got - want| / rms(want) over the sample
  double rms_error = 0;
  int64_t sampled = 0;
  bool finite = true;
};

/// Largest |a - b| and whether every bit agrees; for full-coverage comparison of two competitors' outputs.
struct Difference {
  double max_abs = 0, rms = 0;  // rms of a
  bool same_bits = true;
};

/// What NVML says of a GPU at one moment.
struct ClockSample {
  double sm_mhz = 0, memory_mhz = 0, watts = 0, celsius = 0;
  uint64_t throttle = 0;  // bits of nvmlDeviceGetCurrentClocksEventReasons
  bool ok = false;        // false: not readable, the record is flagged `unattested`
};

struct DeviceInfo {
  std::string name, driver, cuda;  // "NVIDIA H200", "580.159.04", "13.0"; driver empty where NVML is not readable
  int sms = 0;
  int64_t l2_bytes = 0;
  double power_limit_w = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual bool is_gpu() const = 0;
  virtual StreamRef stream() = 0;
  /// Freed with the device, or by release_all.
  virtual base::Result<void*> alloc(size_t bytes) = 0;
  virtual void release_all() = 0;
  virtual base::Status synchronize() = 0;
  virtual base::Status memset(void* data, int byte, size_t bytes) = 0;
  virtual base::Status copy(void* to, const void* from, size_t bytes) = 0;
  virtual base::Status record_begin() = 0;
  virtual base::Status record_end() = 0;
  /// Until the stream has come to where record_begin() was queued.
  virtual base::Status wait_for_begin() = 0;
  /// Microseconds between the two, after synchronising.
  virtual base::Result<double> elapsed_us() = 0;
  /// What `enqueue` puts on the stream, as a graph: the result queues it once more. It lives as long as the result.
  virtual base::Result<std::function<base::Status()>> capture(const std::function<base::Status()>& enqueue) = 0;
  virtual ClockSample clocks() = 0;
  virtual DeviceInfo describe() = 0;
  virtual base::Status fill(const TensorView& matrix, const Normal& values) = 0;
  /// Compares `samples` pseudo-random elements of `out` (rows, N), whose row 0 is row `first_row` of left, with fp64.
  virtual base::Result<Check> check(const TensorView& out, const std::vector<Factor>& factors, int64_t first_row,
                                    DType operand, int64_t samples, uint64_t seed) = 0;
  virtual base::Result<Difference> compare(const TensorView& a, const TensorView& b) = 0;
  /// The first values of a contiguous matrix, at most `count`.
  virtual base::Result<std::vector<float>> first_values(const TensorView& matrix, int64_t count) = 0;
};

/// The calling thread and its memory.
std::unique_ptr<Device> cpu_device();

/// "gpus", "driver", "cuda", ... or "cpu", "cores"; "name" says both and is what records are compared by.
base::Json machine_json(Device& device, int ranks);

/// Why these values must not be timed, empty if they may: data of low entropy toggle fewer bits, draw less power and
/// run faster than real ones.
std::string low_entropy(const std::vector<float>& values);

}  // namespace overlace::bench
