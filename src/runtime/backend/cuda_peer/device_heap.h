// The memory of a symmetric heap on GPUs: one allocation per rank, all of a host's mapped at every rank.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "src/base/status.h"
#include "src/runtime/backend.h"
#include "src/runtime/backend/cuda_peer/probe.h"
#include "src/runtime/control.h"

namespace overlace::runtime::cuda_peer {

struct HeapRequest {
  Control& control;
  std::span<const DeviceFacts> facts;  // by world rank
  std::vector<int> local;              // world ranks that load and store reach, this one included, ascending
  int device = 0;
  uint64_t bytes = 0;  // per rank, a multiple of kHeapGranule
  int64_t timeout_ms = 0;
  uint64_t limit = 0;  // to which it may grow; a multiple of kHeapGranule
};

inline constexpr uint64_t kHeapGranule = 2ull << 20;

/// A physical allocation on request.device, exportable as a descriptor; `bytes` is a multiple of kHeapGranule.
/// out_of_memory names `what`.
base::Result<unsigned long long> create_allocation(const HeapRequest& request, uint64_t bytes, const char* what);

class DeviceHeap {
 public:
  virtual ~DeviceHeap() = default;
  virtual const char* kind() const = 0;  // "vmm" | "ipc"
  /// In my mapping; null for ranks that are not local. Ranks of one process share one mapping: two addresses of one
  /// word on one device would need alias fences.
  virtual char* base(int world_rank) const = 0;
  /// Collective, outside captures, ends with an agreement: request.bytes instead of those so far, at the same
  /// addresses, or what there was. out_of_memory, or not_supported where addresses cannot be kept.
  virtual base::Status grow(const HeapRequest& request) = 0;
};

/// Collective; memory is zero. Closing is local: what peers still map stays valid until they close too.
base::Result<std::unique_ptr<DeviceHeap>> open_vmm_heap(const HeapRequest& request);
base::Result<std::unique_ptr<DeviceHeap>> open_ipc_heap(const HeapRequest& request);

/// Striped ranges of a vmm heap. Collective; ends with an agreement.
base::Result<StripeMemory> map_stripes(const HeapRequest& request, const StripePlan& plan);

/// A value of every rank, by world rank.
template <class T>
base::Result<std::vector<T>> exchange_value(Control& control, const T& mine, int64_t timeout_ms, const char* what);

}  // namespace overlace::runtime::cuda_peer

#include <cstring>
#include <numeric>

namespace overlace::runtime::cuda_peer {

template <class T>
base::Result<std::vector<T>> exchange_value(Control& control, const T& mine, int64_t timeout_ms, const char* what) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::vector<int> all(static_cast<size_t>(control.size()));
  std::iota(all.begin(), all.end(), 0);
  auto got = control.exchange(all, std::as_bytes(std::span(&mine, 1)), timeout_ms, what);
  if (!got.ok()) return got.status();
  std::vector<T> values(all.size());
  for (size_t rank = 0; rank < values.size(); ++rank) {
    if ((*got)[rank].size() != sizeof(T))
      return base::error(Errc::internal, "{}: rank {} sent {} bytes, wanted {}", what, rank, (*got)[rank].size(),
                         sizeof(T));
    std::memcpy(&values[rank], (*got)[rank].data(), sizeof(T));
  }
  return values;
}

}  // namespace overlace::runtime::cuda_peer
