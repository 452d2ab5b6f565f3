// What the driver's management library (NVML) says of a GPU: clocks, power, NVLink.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace overlace::runtime::cuda_peer {

struct Clocks {
  double sm_mhz = 0, memory_mhz = 0, watts = 0, celsius = 0;
  uint64_t throttle = 0;  // bits of nvmlDeviceGetCurrentClocksThrottleReasons
};

/// An active NVLink.
struct NvLink {
  enum class To { gpu, nvswitch, other } to = To::other;
  std::string bus_id = {};  // of a GPU: as Nvml::bus_id
};

/// The library belongs to the driver and is looked up by name: it may be missing, or refuse. Then there is nothing.
class Nvml {
 public:
  /// `device` as the CUDA runtime counts.
  explicit Nvml(int device);
  const std::string& bus_id() const { return bus_id_; }  // "00000000:18:00.0", empty without CUDA
  std::optional<Clocks> clocks() const;
  std::optional<double> power_limit_w() const;
  std::string driver() const;  // "580.159.04", or empty
  std::vector<NvLink> links() const;

 private:
  std::string bus_id_;
  void* device_ = nullptr;
};

}  // namespace overlace::runtime::cuda_peer
