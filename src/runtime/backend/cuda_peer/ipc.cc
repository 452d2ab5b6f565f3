// Heap over plain allocations: cudaIpc handles between processes, peer access inside one. For devices and drivers
// without virtual memory management.
#include <mutex>

#include "src/runtime/backend/cuda_peer/check.h"
#include "src/runtime/backend/cuda_peer/device_heap.h"
#include "src/runtime/in_process.h"

namespace overlace::runtime::cuda_peer {
namespace {

/// Freed when the last rank of the process closes: others may still store into it.
class Allocations {
 public:
  ~Allocations() {
    for (const auto& [device, memory] : owned_) {
      const DeviceGuard guard(device);
      (void)cudaFree(memory);
    }
    (void)cudaGetLastError();
  }
  base::Result<char*> allocate(int device, uint64_t bytes) {
    void* memory = nullptr;
    if (const cudaError_t code = cudaMalloc(&memory, bytes); code != cudaSuccess) {
      (void)cudaGetLastError();
      if (code == cudaErrorMemoryAllocation)
        return base::error(Errc::out_of_memory, "symmetric heap: device {} has no {} bytes left", device, bytes);
      return cuda_status(code, "cudaMalloc");
    }
    const std::lock_guard lock(mutex_);
    owned_.emplace_back(device, memory);
    return static_cast<char*>(memory);
  }

 private:
  std::mutex mutex_;
  std::vector<std::pair<int, void*>> owned_;
};

class IpcHeap final : public DeviceHeap {
 public:
  IpcHeap(std::shared_ptr<Allocations> allocations, int device, size_t world)
      : bases(world), opened(world), allocations_(std::move(allocations)), device_(device) {}
  ~IpcHeap() override {
    const DeviceGuard guard(device_);
    for (char* memory : opened)
      if (memory != nullptr) (void)cudaIpcCloseMemHandle(memory);
    (void)cudaGetLastError();
  }
  const char* kind() const override { return "ipc"; }
  char* base(int world_rank) const override { return bases[static_cast<size_t>(world_rank)]; }
  base::Status grow(const HeapRequest& request) override {
    return base::error(Errc::not_supported,
                       "symmetric heap: one of cudaIpc handles cannot grow to {} bytes; wanted: a larger heap_bytes",
                       request.bytes);
  }

  std::vector<char*> bases, opened;

 private:
  std::shared_ptr<Allocations> allocations_;
  int device_;
};

/// Inside one process: from the current device to those of all local ranks.
base::Status enable_access(const HeapRequest& request) {
  for (int rank : request.local) {
    const int peer = request.facts[static_cast<size_t>(rank)].ordinal;
    if (peer == request.device) continue;
    const cudaError_t code = cudaDeviceEnablePeerAccess(peer, 0);
    if (code == cudaErrorPeerAccessAlreadyEnabled) {
      (void)cudaGetLastError();
      continue;
    }
    OVERLACE_TRY(cuda_status(code, "cudaDeviceEnablePeerAccess"));
  }
  return {};
}

}  // namespace

base::Result<std::unique_ptr<DeviceHeap>> open_ipc_heap(const HeapRequest& request) {
  Control& control = request.control;
  const DeviceGuard guard(request.device);
  const bool threads = control.in_process();
  const size_t me = static_cast<size_t>(control.rank());
  struct Offer {
    char* address;
    cudaIpcMemHandle_t handle;
  };
  Offer mine{};
  std::unique_ptr<IpcHeap> heap;
  const auto make_own = [&]() -> base::Status {
    const auto make = [] { return std::static_pointer_cast<void>(std::make_shared<Allocations>()); };
    const uint64_t key = control.generation() ^ 0x6970632068656170ull;
    auto allocations = std::static_pointer_cast<Allocations>(threads ? share_in_process(key, make) : make());
    heap = std::make_unique<IpcHeap>(allocations, request.device, request.facts.size());
    base::Result<char*> memory = allocations->allocate(request.device, request.bytes);
    if (!memory.ok()) return memory.status();
    mine.address = heap->bases[me] = *memory;
    OVERLACE_TRY(cuda_status(cudaMemset(mine.address, 0, request.bytes), "cudaMemset"));
    OVERLACE_TRY(cuda_status(cudaDeviceSynchronize(), "cudaDeviceSynchronize"));
    if (threads) return enable_access(request);
    return cuda_status(cudaIpcGetMemHandle(&mine.handle, mine.address), "cudaIpcGetMemHandle");
  };
  OVERLACE_TRY(agree_on_status(control, make_own(), request.timeout_ms, "symmetric heap"));
  base::Result<std::vector<Offer>> offers = exchange_value(control, mine, request.timeout_ms, "symmetric heap");
  if (!offers.ok()) return offers.status();
  for (int rank : request.local) {
    const size_t at = static_cast<size_t>(rank);
    if (at == me) continue;
    if (threads) {
      heap->bases[at] = (*offers)[at].address;
      continue;
    }
    void* memory = nullptr;
    const cudaError_t code = cudaIpcOpenMemHandle(&memory, (*offers)[at].handle, cudaIpcMemLazyEnablePeerAccess);
    if (base::Status status = cuda_status(code, "cudaIpcOpenMemHandle"); !status.ok())
      return base::error(status.code(), "heap of rank {}: {}", rank, status.message());
    heap->bases[at] = heap->opened[at] = static_cast<char*>(memory);
  }
  return std::unique_ptr<DeviceHeap>(std::move(heap));
}

}  // namespace overlace::runtime::cuda_peer
