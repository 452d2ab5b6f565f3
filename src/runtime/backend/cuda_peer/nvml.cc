#include "src/runtime/backend/cuda_peer/nvml.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstring>
#include <type_traits>

namespace overlace::runtime::cuda_peer {
namespace {

constexpr int kSuccess = 0, kClockSm = 1, kClockMemory = 2, kTemperatureGpu = 0;
constexpr unsigned kMostLinks = 36;
constexpr int kRemoteGpu = 0, kRemoteSwitch = 2;

/// nvmlPciInfo_t, and room for what later ones may have behind it.
struct PciInfo {
  char legacy[16];
  unsigned domain, bus, device, ids[2];
  char bus_id[32];
  char more[192];
};

/// Types as NVML's stable ABI has them: its header may be missing.
struct Library {
  int (*by_bus)(const char*, void**) = nullptr;
  int (*clock)(void*, int, unsigned*) = nullptr;
  int (*power)(void*, unsigned*) = nullptr;
  int (*limit)(void*, unsigned*) = nullptr;
  int (*temperature)(void*, int, unsigned*) = nullptr;
  int (*reasons)(void*, unsigned long long*) = nullptr;
  int (*driver)(char*, unsigned) = nullptr;
  int (*link_state)(void*, unsigned, int*) = nullptr;
  int (*link_pci)(void*, unsigned, PciInfo*) = nullptr;
  int (*link_type)(void*, unsigned, int*) = nullptr;  // older drivers: null
  bool ok = false;

  Library() {
    void* const file = ::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (file == nullptr) return;
    const auto get = [&](const char* name, auto* out) {
      *out = reinterpret_cast<std::remove_pointer_t<decltype(out)>>(::dlsym(file, name));
      return *out != nullptr;
    };
    int (*init)() = nullptr;
    (void)get("nvmlDeviceGetNvLinkState", &link_state);
    (void)get("nvmlDeviceGetNvLinkRemotePciInfo_v2", &link_pci);
    (void)get("nvmlDeviceGetNvLinkRemoteDeviceType", &link_type);
    ok = get("nvmlInit_v2", &init) && get("nvmlDeviceGetHandleByPciBusId_v2", &by_bus) &&
         get("nvmlDeviceGetClockInfo", &clock) && get("nvmlDeviceGetPowerUsage", &power) &&
         get("nvmlDeviceGetEnforcedPowerLimit", &limit) && get("nvmlDeviceGetTemperature", &temperature) &&
         get("nvmlDeviceGetCurrentClocksThrottleReasons", &reasons) && get("nvmlSystemGetDriverVersion", &driver) &&
         init() == kSuccess;
  }
};

const Library& library() {
  static const Library loaded;
  return loaded;
}

/// NVML pads domains to eight digits, CUDA to four; letters differ in case.
std::string padded(std::string bus_id) {
  if (const size_t colon = bus_id.find(':'); colon < 8) bus_id.insert(0, 8 - colon, '0');
  std::transform(bus_id.begin(), bus_id.end(), bus_id.begin(), [](unsigned char c) { return std::tolower(c); });
  return bus_id;
}

}  // namespace

Nvml::Nvml(int device) {
  char bus_id[32] = "";
  if (cudaDeviceGetPCIBusId(bus_id, sizeof bus_id, device) != cudaSuccess) {
    (void)cudaGetLastError();
    return;
  }
  bus_id_ = padded(bus_id);
  const Library& nvml = library();
  if (!nvml.ok || nvml.by_bus(bus_id, &device_) != kSuccess) device_ = nullptr;
}

std::optional<Clocks> Nvml::clocks() const {
  const Library& nvml = library();
  unsigned sm = 0, memory = 0, mw = 0, celsius = 0;
  unsigned long long why = 0;
  const bool ok = device_ != nullptr && nvml.clock(device_, kClockSm, &sm) == kSuccess &&
                  nvml.clock(device_, kClockMemory, &memory) == kSuccess && nvml.power(device_, &mw) == kSuccess &&
                  nvml.temperature(device_, kTemperatureGpu, &celsius) == kSuccess &&
                  nvml.reasons(device_, &why) == kSuccess;
  if (!ok) return std::nullopt;
  return Clocks{static_cast<double>(sm), static_cast<double>(memory), mw / 1000.0, static_cast<double>(celsius), why};
}

std::optional<double> Nvml::power_limit_w() const {
  unsigned mw = 0;
  if (device_ == nullptr || library().limit(device_, &mw) != kSuccess) return std::nullopt;
  return mw / 1000.0;
}

std::string Nvml::driver() const {
  std::array<char, 96> text{};
  if (device_ == nullptr || library().driver(text.data(), text.size()) != kSuccess) return {};
  return text.data();
}

std::vector<NvLink> Nvml::links() const {
  std::vector<NvLink> out;
  const Library& nvml = library();
  if (device_ == nullptr || nvml.link_state == nullptr) return out;
  for (unsigned link = 0; link < kMostLinks; ++link) {
    int is_active = 0, type = -1;
    if (nvml.link_state(device_, link, &is_active) != kSuccess || is_active == 0) continue;
    NvLink one;
    PciInfo remote{};
    if (nvml.link_pci != nullptr && nvml.link_pci(device_, link, &remote) == kSuccess)
      one.bus_id = padded(remote.bus_id);
    if (nvml.link_type != nullptr && nvml.link_type(device_, link, &type) == kSuccess)
      one.to = type == kRemoteGpu ? NvLink::To::gpu : type == kRemoteSwitch ? NvLink::To::nvswitch : NvLink::To::other;
    out.push_back(std::move(one));
  }
  return out;
}

}  // namespace overlace::runtime::cuda_peer
