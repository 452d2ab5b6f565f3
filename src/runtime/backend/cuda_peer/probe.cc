#include "src/runtime/backend/cuda_peer/probe.h"

#include <cuda_runtime_api.h>
#include <unistd.h>

#include <cstring>

#include "src/base/env.h"
#include "src/runtime/backend.h"
#include "src/runtime/backend/cuda_peer/check.h"
#include "src/runtime/backend/cuda_peer/driver.h"
#include "src/runtime/backend/cuda_peer/stream_ops.h"
#include "src/runtime/gpu_code.h"

namespace overlace::runtime {

int cuda_device_count(std::string* why) {
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code != cudaSuccess) {
    (void)cudaGetLastError();
    if (why != nullptr) *why = base::format("{} ({})", cudaGetErrorString(code), cudaGetErrorName(code));
    return 0;
  }
  if (count == 0 && why != nullptr) *why = "the CUDA driver sees no device";
  return count;
}

CudaDevice cuda_device(int ordinal) {
  CudaDevice out;
  int l2_bytes = 0;
  if (cudaDeviceGetAttribute(&l2_bytes, cudaDevAttrL2CacheSize, ordinal) == cudaSuccess) out.l2_bytes = l2_bytes;
  if (cudaRuntimeGetVersion(&out.version) != cudaSuccess) out.version = 0;
  out.sms = cuda_peer::count_sms(ordinal);
  int major = 0, minor = 0;
  if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal) == cudaSuccess &&
      cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, ordinal) == cudaSuccess)
    out.compute_capability = 10 * major + minor;
  return out;
}

namespace cuda_peer {

base::Result<int> choose_device(int wanted, int local_rank) {
  std::string why;
  const int count = cuda_device_count(&why);
  if (count == 0) return base::error(Errc::not_supported, "backend cuda_peer: no usable CUDA device: {}", why);
  if (wanted >= count)
    return base::invalid_argument("options.device is {}, wanted -1 or less than the {} devices of this process", wanted,
                                  count);
  const int ordinal = wanted >= 0 ? wanted : local_rank % count;
  cudaDeviceProp properties{};
  OVERLACE_TRY(cuda_status(cudaGetDeviceProperties(&properties, ordinal), "cudaGetDeviceProperties"));
  OVERLACE_TRY(
      check_code_for(OVERLACE_CUDA_ARCHITECTURES, ordinal, properties.name, properties.major, properties.minor));
  return ordinal;
}

base::Result<DeviceFacts> query_device(int ordinal) {
  cudaDeviceProp properties{};
  OVERLACE_TRY(cuda_status(cudaGetDeviceProperties(&properties, ordinal), "cudaGetDeviceProperties"));
  DeviceFacts facts;
  std::memcpy(facts.uuid, properties.uuid.bytes, sizeof(facts.uuid));
  facts.ordinal = ordinal;
  facts.compute_capability = 10 * properties.major + properties.minor;
  facts.pci_domain = properties.pciDomainID;
  facts.pci_bus = properties.pciBusID;
  facts.pci_device = properties.pciDeviceID;
  facts.pid = ::getpid();
  facts.allow_shared = base::env().allow_shared_gpu ? 1 : 0;
  facts.stream_ops = query_stream_caps(ordinal).write_value ? 1 : 0;
  const base::Result<const Driver*> api = driver();
  if (!api.ok()) return facts;  // without those functions only the IPC heap is left
  CUdevice device = 0;
  OVERLACE_TRY((*api)->status((*api)->cuDeviceGet(&device, ordinal), "cuDeviceGet"));
  const auto has = [&](CUdevice_attribute attribute) {
    int value = 0;
    return (*api)->cuDeviceGetAttribute(&value, attribute, device) == CUDA_SUCCESS && value != 0;
  };
  facts.vmm = has(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) &&
              has(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
  facts.rdma = has(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
  return facts;
}

int count_sms(int ordinal) {
  int count = 0;
  const cudaError_t code = cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, ordinal);
  (void)cudaGetLastError();
  return code == cudaSuccess ? count : 0;
}

base::Status check_sharing(std::span<const DeviceFacts> facts) {
  for (size_t a = 0; a < facts.size(); ++a) {
    for (size_t b = a + 1; b < facts.size(); ++b) {
      const bool same_device = std::memcmp(facts[a].uuid, facts[b].uuid, sizeof(facts[a].uuid)) == 0;
      if (!same_device || facts[a].pid == facts[b].pid) continue;
      if (facts[a].allow_shared != 0 && facts[b].allow_shared != 0) continue;
      return base::error(Errc::not_supported,
                         "ranks {} and {} (pids {} and {}) use one GPU, ordinals {} and {}; give each its own, or set "
                         "OVERLACE_ALLOW_SHARED_GPU=1 for schedules whose waits are made by the host",
                         a, b, facts[a].pid, facts[b].pid, facts[a].ordinal, facts[b].ordinal);
    }
  }
  return {};
}

Sharing find_sharing(std::span<const DeviceFacts> facts) {
  Sharing sharing;
  for (size_t a = 0; a < facts.size(); ++a) {
    for (size_t b = a + 1; b < facts.size(); ++b) {
      if (std::memcmp(facts[a].uuid, facts[b].uuid, sizeof(facts[a].uuid)) != 0) continue;
      sharing.any = true;
      sharing.between_processes |= facts[a].pid != facts[b].pid;
    }
  }
  return sharing;
}

std::vector<PeerAccess> query_access(int ordinal, std::span<const DeviceFacts> facts) {
  std::vector<PeerAccess> result(facts.size());
  std::vector<cudaDeviceProp> visible(static_cast<size_t>(cuda_device_count(nullptr)));
  for (size_t i = 0; i < visible.size(); ++i)
    if (cudaGetDeviceProperties(&visible[i], static_cast<int>(i)) != cudaSuccess) visible[i] = {};
  const auto find = [&](const DeviceFacts& device) {
    if (device.pid == ::getpid()) return device.ordinal;
    for (size_t i = 0; i < visible.size(); ++i)
      if (std::memcmp(visible[i].uuid.bytes, device.uuid, sizeof(device.uuid)) == 0) return static_cast<int>(i);
    return -1;
  };
  for (size_t rank = 0; rank < facts.size(); ++rank) {
    const int peer = find(facts[rank]);
    if (peer == ordinal) {
      result[rank] = {true, true};
      continue;
    }
    if (peer < 0) continue;
    int access = 0, atomics = 0;
    if (cudaDeviceCanAccessPeer(&access, ordinal, peer) != cudaSuccess) access = 0;
    if (cudaDeviceGetP2PAttribute(&atomics, cudaDevP2PAttrNativeAtomicSupported, ordinal, peer) != cudaSuccess)
      atomics = 0;
    result[rank] = {access != 0, atomics != 0};
  }
  (void)cudaGetLastError();
  return result;
}

}  // namespace cuda_peer
}  // namespace overlace::runtime
