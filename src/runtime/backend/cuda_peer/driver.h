// The driver functions in use, found through the CUDA runtime: nothing links libcuda, so binaries start without it.
#pragma once

#include <cuda.h>

#include "src/base/status.h"

namespace overlace::runtime::cuda_peer {

/// Members bear the names of the functions.
struct Driver {
  decltype(&::cuGetErrorName) cuGetErrorName = nullptr;
  decltype(&::cuDeviceGet) cuDeviceGet = nullptr;
  decltype(&::cuDeviceGetAttribute) cuDeviceGetAttribute = nullptr;
  decltype(&::cuMemGetAllocationGranularity) cuMemGetAllocationGranularity = nullptr;
  decltype(&::cuMemCreate) cuMemCreate = nullptr;
  decltype(&::cuMemRelease) cuMemRelease = nullptr;
  decltype(&::cuMemExportToShareableHandle) cuMemExportToShareableHandle = nullptr;
  decltype(&::cuMemImportFromShareableHandle) cuMemImportFromShareableHandle = nullptr;
  decltype(&::cuMemAddressReserve) cuMemAddressReserve = nullptr;
  decltype(&::cuMemAddressFree) cuMemAddressFree = nullptr;
  decltype(&::cuMemMap) cuMemMap = nullptr;
  decltype(&::cuMemUnmap) cuMemUnmap = nullptr;
  decltype(&::cuMemSetAccess) cuMemSetAccess = nullptr;
  decltype(&::cuStreamWriteValue64) cuStreamWriteValue64 = nullptr;
  decltype(&::cuStreamWaitValue64) cuStreamWaitValue64 = nullptr;

  /// `cuda` with call and error name; out_of_memory where that is the cause.
  base::Status status(CUresult code, const char* call) const;
};

/// not_supported naming the first function that the driver lacks.
base::Result<const Driver*> driver();

}  // namespace overlace::runtime::cuda_peer
