// Heap over virtual memory management: an allocation outlives the process that exported it while others map it.
#include <unistd.h>

#include <algorithm>

#include "src/runtime/backend/cuda_peer/check.h"
#include "src/runtime/backend/cuda_peer/device_heap.h"
#include "src/runtime/backend/cuda_peer/driver.h"
#include "src/runtime/bootstrap/fd_exchange.h"
#include "src/runtime/hash.h"
#include "src/runtime/in_process.h"

namespace overlace::runtime::cuda_peer {
namespace {

constexpr CUmemAllocationHandleType kHandleType = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

/// One range of addresses with a part per local rank. Shared by the ranks of a process: the last one unmaps, because
/// kernels of another rank may still store into a part whose owner left.
class Mapping {
 public:
  Mapping(const Driver& api, size_t parts, uint64_t stride) : api_(api), handles_(parts), stride_(stride) {}
  ~Mapping() {
    for (size_t part = 0; part < handles_.size(); ++part) {
      if (!handles_[part].mapped) continue;
      (void)api_.cuMemUnmap(base_ + part * stride_, stride_);
      (void)api_.cuMemRelease(handles_[part].handle);
    }
    if (base_ != 0) (void)api_.cuMemAddressFree(base_, stride_ * handles_.size());
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  base::Status reserve() {
    return api_.status(api_.cuMemAddressReserve(&base_, stride_ * handles_.size(), kHeapGranule, 0, 0),
                       "cuMemAddressReserve");
  }
  /// Takes the handle, on failure too. Different parts may be mapped by different threads.
  base::Status map(size_t part, CUmemGenericAllocationHandle handle, const std::vector<int>& devices) {
    const CUdeviceptr at = base_ + part * stride_;
    if (const CUresult code = api_.cuMemMap(at, stride_, 0, handle, 0); code != CUDA_SUCCESS) {
      (void)api_.cuMemRelease(handle);
      return api_.status(code, "cuMemMap");
    }
    handles_[part] = {handle, true};
    std::vector<CUmemAccessDesc> access(devices.size());
    for (size_t i = 0; i < devices.size(); ++i) {
      access[i].location.type = CU_MEM_LOCATION_TYPE_DEVICE;
      access[i].location.id = devices[i];
      access[i].flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    }
    return api_.status(api_.cuMemSetAccess(at, stride_, access.data(), access.size()), "cuMemSetAccess");
  }
  char* part(size_t index) const { return reinterpret_cast<char*>(base_ + index * stride_); }
  bool reserved() const { return base_ != 0; }

 private:
  struct Part {
    CUmemGenericAllocationHandle handle = 0;
    bool mapped = false;
  };
  const Driver& api_;
  std::vector<Part> handles_;
  uint64_t stride_;
  CUdeviceptr base_ = 0;
};

class VmmHeap final : public DeviceHeap {
 public:
  VmmHeap(std::shared_ptr<Mapping> mapping, std::vector<int> local)
      : mapping_(std::move(mapping)), local_(std::move(local)) {}
  const char* kind() const override { return "vmm"; }
  char* base(int world_rank) const override {
    const auto at = std::lower_bound(local_.begin(), local_.end(), world_rank);
    if (at == local_.end() || *at != world_rank) return nullptr;
    return mapping_->part(static_cast<size_t>(at - local_.begin()));
  }

 private:
  std::shared_ptr<Mapping> mapping_;
  std::vector<int> local_;
};

size_t part_of(const HeapRequest& request, int world_rank) {
  return static_cast<size_t>(std::lower_bound(request.local.begin(), request.local.end(), world_rank) -
                             request.local.begin());
}

/// The mapping that all local ranks of the process share, reserved by whoever came first.
base::Result<std::shared_ptr<Mapping>> shared_mapping(const Driver& api, const HeapRequest& request) {
  base::Status status;
  const uint64_t key =
      hash_word(static_cast<uint64_t>(request.local.front()), hash_text("heap", request.control.generation()));
  auto object = share_in_process(key, [&]() -> std::shared_ptr<void> {
    auto fresh = std::make_shared<Mapping>(api, request.local.size(), request.bytes);
    status = fresh->reserve();
    return fresh;
  });
  OVERLACE_TRY(std::move(status));
  auto mapping = std::static_pointer_cast<Mapping>(object);
  if (!mapping->reserved()) return base::error(Errc::cuda, "symmetric heap: another rank could not reserve addresses");
  return mapping;
}

/// Parts of the peers, from their descriptors, in the order of request.local; closes all of them.
base::Status import_peers(const Driver& api, const HeapRequest& request, const std::vector<int>& fds,
                          Mapping& mapping) {
  base::Status status;
  for (size_t part = 0; part < request.local.size(); ++part) {
    const int rank = request.local[part];
    if (rank == request.control.rank() || !status.ok()) continue;
    CUmemGenericAllocationHandle handle = 0;
    void* fd = reinterpret_cast<void*>(static_cast<intptr_t>(fds[part]));
    status = api.status(api.cuMemImportFromShareableHandle(&handle, fd, kHandleType), "cuMemImportFromShareableHandle");
    if (status.ok()) status = mapping.map(part, handle, {request.device});
    if (!status.ok()) status = base::error(status.code(), "heap of rank {}: {}", rank, status.message());
  }
  for (int fd : fds)
    if (fd >= 0) (void)::close(fd);
  return status;
}

}  // namespace

base::Result<CUmemGenericAllocationHandle> create_allocation(const HeapRequest& request, uint64_t bytes,
                                                             const char* what) {
  const base::Result<const Driver*> found = driver();
  if (!found.ok()) return found.status();
  const Driver& api = **found;
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = request.device;
  properties.requestedHandleTypes = kHandleType;
  const DeviceFacts& mine = request.facts[static_cast<size_t>(request.control.rank())];
  properties.allocFlags.gpuDirectRDMACapable = mine.rdma != 0 ? 1 : 0;
  size_t granule = 0;
  OVERLACE_TRY(api.status(api.cuMemGetAllocationGranularity(&granule, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
                          "cuMemGetAllocationGranularity"));
  if (granule == 0 || bytes % granule != 0)
    return base::error(Errc::not_supported, "{} of {} bytes: the device allocates multiples of {}", what, bytes,
                       granule);
  CUmemGenericAllocationHandle handle = 0;
  const CUresult code = api.cuMemCreate(&handle, bytes, &properties, 0);
  if (code == CUDA_ERROR_OUT_OF_MEMORY)
    return base::error(Errc::out_of_memory, "{}: device {} has no {} bytes left", what, request.device, bytes);
  OVERLACE_TRY(api.status(code, "cuMemCreate"));
  return handle;
}

base::Result<std::unique_ptr<DeviceHeap>> open_vmm_heap(const HeapRequest& request) {
  const base::Result<const Driver*> found = driver();
  if (!found.ok()) return found.status();
  const Driver& api = **found;
  const DeviceGuard guard(request.device);
  Control& control = request.control;
  const bool threads = control.in_process();

  // ---- my part ----
  std::shared_ptr<Mapping> mapping;
  int fd = -1;
  const auto make_own = [&]() -> base::Status {
    if (threads) {
      auto shared = shared_mapping(api, request);
      if (!shared.ok()) return shared.status();
      mapping = *shared;
    } else {
      mapping = std::make_shared<Mapping>(api, request.local.size(), request.bytes);
      OVERLACE_TRY(mapping->reserve());
    }
    base::Result<CUmemGenericAllocationHandle> handle = create_allocation(request, request.bytes, "symmetric heap");
    if (!handle.ok()) return handle.status();
    const CUmemGenericAllocationHandle mine = *handle;
    std::vector<int> devices{request.device};
    if (threads)
      for (int rank : request.local) devices.push_back(request.facts[static_cast<size_t>(rank)].ordinal);
    std::sort(devices.begin(), devices.end());
    devices.erase(std::unique(devices.begin(), devices.end()), devices.end());
    OVERLACE_TRY(mapping->map(part_of(request, control.rank()), mine, devices));
    char* memory = mapping->part(part_of(request, control.rank()));
    OVERLACE_TRY(cuda_status(cudaMemset(memory, 0, request.bytes), "cudaMemset"));
    OVERLACE_TRY(cuda_status(cudaDeviceSynchronize(), "cudaDeviceSynchronize"));
    if (threads) return {};
    return api.status(api.cuMemExportToShareableHandle(&fd, mine, kHandleType, 0), "cuMemExportToShareableHandle");
  };
  base::Status status = agree_on_status(control, make_own(), request.timeout_ms, "symmetric heap");

  // ---- the others' parts ----
  if (status.ok() && !threads) {
    base::Result<std::vector<int>> fds = exchange_fds(control, request.local, fd, request.timeout_ms);
    status = fds.ok() ? import_peers(api, request, *fds, *mapping) : fds.status();
  }
  if (fd >= 0) (void)::close(fd);
  OVERLACE_TRY(std::move(status));
  return std::unique_ptr<DeviceHeap>(std::make_unique<VmmHeap>(std::move(mapping), request.local));
}

}  // namespace overlace::runtime::cuda_peer
