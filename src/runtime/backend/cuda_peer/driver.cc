#include "src/runtime/backend/cuda_peer/driver.h"

#include <cuda_runtime_api.h>

namespace overlace::runtime::cuda_peer {
namespace {

constexpr unsigned kApiVersion = 12000;  // signatures of this header set

template <class Function>
base::Status find(const char* name, Function* function) {
  void* address = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t code = cudaGetDriverEntryPointByVersion(name, &address, kApiVersion, cudaEnableDefault, &found);
  if (code != cudaSuccess || found != cudaDriverEntryPointSuccess || address == nullptr) {
    (void)cudaGetLastError();
    return base::error(Errc::not_supported, "the CUDA driver offers no {}: {}", name,
                       code == cudaSuccess ? "not found" : cudaGetErrorString(code));
  }
  *function = reinterpret_cast<Function>(address);
  return {};
}

base::Result<Driver> load() {
  Driver d;
#define OVERLACE_FIND(name) OVERLACE_TRY(find(#name, &d.name))
  OVERLACE_FIND(cuGetErrorName);
  OVERLACE_FIND(cuDeviceGet);
  OVERLACE_FIND(cuDeviceGetAttribute);
  OVERLACE_FIND(cuMemGetAllocationGranularity);
  OVERLACE_FIND(cuMemCreate);
  OVERLACE_FIND(cuMemRelease);
  OVERLACE_FIND(cuMemExportToShareableHandle);
  OVERLACE_FIND(cuMemImportFromShareableHandle);
  OVERLACE_FIND(cuMemAddressReserve);
  OVERLACE_FIND(cuMemAddressFree);
  OVERLACE_FIND(cuMemMap);
  OVERLACE_FIND(cuMemUnmap);
  OVERLACE_FIND(cuMemSetAccess);
  OVERLACE_FIND(cuStreamWriteValue64);
  OVERLACE_FIND(cuStreamWaitValue64);
#undef OVERLACE_FIND
  return d;
}

}  // namespace

base::Status Driver::status(CUresult code, const char* call) const {
  if (code == CUDA_SUCCESS) return {};
  const char* name = nullptr;
  if (cuGetErrorName(code, &name) != CUDA_SUCCESS || name == nullptr) name = "unknown error";
  const Errc errc = code == CUDA_ERROR_OUT_OF_MEMORY ? Errc::out_of_memory : Errc::cuda;
  return base::error(errc, "{}: {} ({})", call, name, static_cast<int>(code));
}

base::Result<const Driver*> driver() {
  static const base::Result<Driver> instance = load();
  if (!instance.ok()) return instance.status();
  return &instance.value();
}

}  // namespace overlace::runtime::cuda_peer
