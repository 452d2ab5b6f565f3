// Heap over virtual memory management: an allocation outlives the process that exported it while others map it.
#include <unistd.h>

#include <algorithm>

#include "src/runtime/backend/cuda_peer/check.h"
#include "src/runtime/backend/cuda_peer/device_heap.h"
#include "src/runtime/backend/cuda_peer/driver.h"
#include "src/runtime/backend/cuda_peer/local_memory.h"
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
  Mapping(const Driver& api, size_t parts, uint64_t stride) : api_(api), parts_(parts), stride_(stride) {}
  ~Mapping() {
    for (const std::vector<Piece>& part : parts_) {
      for (const Piece& piece : part) {
        (void)api_.cuMemUnmap(piece.at, piece.bytes);
        (void)api_.cuMemRelease(piece.handle);
      }
    }
    if (base_ != 0) (void)api_.cuMemAddressFree(base_, stride_ * parts_.size());
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  base::Status reserve() {
    return api_.status(api_.cuMemAddressReserve(&base_, stride_ * parts_.size(), kHeapGranule, 0, 0),
                       "cuMemAddressReserve");
  }
  /// Bytes [from, to) of a part, behind those that it has. Takes the handle, on failure too. Different parts may be
  /// mapped by different threads.
  base::Status map(size_t part, uint64_t from, uint64_t to, CUmemGenericAllocationHandle handle,
                   const std::vector<int>& devices) {
    const Piece piece{handle, base_ + part * stride_ + from, to - from};
    if (const CUresult code = api_.cuMemMap(piece.at, piece.bytes, 0, handle, 0); code != CUDA_SUCCESS) {
      (void)api_.cuMemRelease(handle);
      return api_.status(code, "cuMemMap");
    }
    parts_[part].push_back(piece);
    std::vector<CUmemAccessDesc> access(devices.size());
    for (size_t i = 0; i < devices.size(); ++i) {
      access[i].location.type = CU_MEM_LOCATION_TYPE_DEVICE;
      access[i].location.id = devices[i];
      access[i].flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    }
    return api_.status(api_.cuMemSetAccess(piece.at, piece.bytes, access.data(), access.size()), "cuMemSetAccess");
  }
  /// What lies at `from` or behind it, of a part that failed to grow.
  void unmap(size_t part, uint64_t from) {
    std::vector<Piece>& pieces = parts_[part];
    while (!pieces.empty() && pieces.back().at >= base_ + part * stride_ + from) {
      (void)api_.cuMemUnmap(pieces.back().at, pieces.back().bytes);
      (void)api_.cuMemRelease(pieces.back().handle);
      pieces.pop_back();
    }
  }
  char* part(size_t index) const { return reinterpret_cast<char*>(base_ + index * stride_); }
  bool reserved() const { return base_ != 0; }

 private:
  struct Piece {
    CUmemGenericAllocationHandle handle = 0;
    CUdeviceptr at = 0;
    uint64_t bytes = 0;
  };
  const Driver& api_;
  std::vector<std::vector<Piece>> parts_;  // in the order of their addresses
  uint64_t stride_;
  CUdeviceptr base_ = 0;
};

class VmmHeap final : public DeviceHeap {
 public:
  VmmHeap(const Driver& api, std::shared_ptr<Mapping> mapping, std::vector<int> local)
      : api_(api), mapping_(std::move(mapping)), local_(std::move(local)) {}
  const char* kind() const override { return "vmm"; }
  char* base(int world_rank) const override {
    const auto at = std::lower_bound(local_.begin(), local_.end(), world_rank);
    if (at == local_.end() || *at != world_rank) return nullptr;
    return mapping_->part(static_cast<size_t>(at - local_.begin()));
  }
  base::Status grow(const HeapRequest& request) override;

 private:
  base::Status add_own(const HeapRequest& request, int* fd);
  base::Status import_peers(const HeapRequest& request, const std::vector<int>& fds);

  const Driver& api_;
  std::shared_ptr<Mapping> mapping_;
  std::vector<int> local_;
  uint64_t bytes_ = 0;  // of each part that have memory
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
    auto fresh = std::make_shared<Mapping>(api, request.local.size(), request.limit);
    status = fresh->reserve();
    return fresh;
  });
  OVERLACE_TRY(std::move(status));
  auto mapping = std::static_pointer_cast<Mapping>(object);
  if (!mapping->reserved()) return base::error(Errc::cuda, "symmetric heap: another rank could not reserve addresses");
  return mapping;
}

/// The added bytes of my part, zeroed. `fd`: for the peers, where they are processes.
base::Status VmmHeap::add_own(const HeapRequest& request, int* fd) {
  const bool threads = request.control.in_process();
  const uint64_t added = request.bytes - bytes_;
  const size_t part = part_of(request, request.control.rank());
  base::Result<CUmemGenericAllocationHandle> handle = create_allocation(request, added, "symmetric heap");
  if (!handle.ok()) return handle.status();
  const CUmemGenericAllocationHandle mine = *handle;
  std::vector<int> devices{request.device};
  if (threads)
    for (int rank : request.local) devices.push_back(request.facts[static_cast<size_t>(rank)].ordinal);
  std::sort(devices.begin(), devices.end());
  devices.erase(std::unique(devices.begin(), devices.end()), devices.end());
  OVERLACE_TRY(mapping_->map(part, bytes_, request.bytes, mine, devices));
  OVERLACE_TRY(fill(mapping_->part(part) + bytes_, 0, added));
  if (threads) return {};
  return api_.status(api_.cuMemExportToShareableHandle(fd, mine, kHandleType, 0), "cuMemExportToShareableHandle");
}

/// The same bytes of the peers' parts, from their descriptors, in the order of request.local; closes all of them.
base::Status VmmHeap::import_peers(const HeapRequest& request, const std::vector<int>& fds) {
  base::Status status;
  for (size_t part = 0; part < request.local.size(); ++part) {
    const int rank = request.local[part];
    if (rank == request.control.rank() || !status.ok()) continue;
    CUmemGenericAllocationHandle handle = 0;
    void* fd = reinterpret_cast<void*>(static_cast<intptr_t>(fds[part]));
    status =
        api_.status(api_.cuMemImportFromShareableHandle(&handle, fd, kHandleType), "cuMemImportFromShareableHandle");
    if (status.ok()) status = mapping_->map(part, bytes_, request.bytes, handle, {request.device});
    if (!status.ok()) status = base::error(status.code(), "heap of rank {}: {}", rank, status.message());
  }
  for (int fd : fds)
    if (fd >= 0) (void)::close(fd);
  return status;
}

base::Status VmmHeap::grow(const HeapRequest& request) {
  const DeviceGuard guard(request.device);
  Control& control = request.control;
  const bool threads = control.in_process();
  const auto take_back = [&](bool with_peers) {
    for (size_t part = 0; part < request.local.size(); ++part)
      if (request.local[part] == control.rank() || (with_peers && !threads)) mapping_->unmap(part, bytes_);
  };
  int fd = -1;
  base::Status status = agree_on_status(control, add_own(request, &fd), request.timeout_ms, "symmetric heap");
  if (!status.ok()) take_back(/*with_peers=*/false);
  if (status.ok() && !threads) {
    base::Result<std::vector<int>> fds = exchange_fds(control, request.local, fd, request.timeout_ms);
    status = fds.ok() ? import_peers(request, *fds) : fds.status();
    status = agree_on_status(control, status, request.timeout_ms, "mappings of the symmetric heap");
    if (!status.ok()) take_back(/*with_peers=*/true);
  }
  if (fd >= 0) (void)::close(fd);
  OVERLACE_TRY(std::move(status));
  bytes_ = request.bytes;
  return {};
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
  std::shared_ptr<Mapping> mapping;
  base::Status status;
  if (request.control.in_process()) {
    auto shared = shared_mapping(api, request);
    status = shared.status();
    if (shared.ok()) mapping = std::move(*shared);
  } else {
    mapping = std::make_shared<Mapping>(api, request.local.size(), request.limit);
    status = mapping->reserve();
  }
  OVERLACE_TRY(agree_on_status(request.control, status, request.timeout_ms, "symmetric heap"));
  auto heap = std::make_unique<VmmHeap>(api, std::move(mapping), request.local);
  OVERLACE_TRY(heap->grow(request));
  return std::unique_ptr<DeviceHeap>(std::move(heap));
}

}  // namespace overlace::runtime::cuda_peer
