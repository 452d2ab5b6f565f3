// Striped ranges of GPUs: each part is an allocation of its own on its owner, mapped into the range of the rank that
// stores there and, between processes, at the owner too.
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "src/runtime/backend/cuda_peer/check.h"
#include "src/runtime/backend/cuda_peer/device_heap.h"
#include "src/runtime/backend/cuda_peer/driver.h"
#include "src/runtime/backend/cuda_peer/state.h"
#include "src/runtime/hash.h"
#include "src/runtime/in_process.h"

namespace overlace::runtime::cuda_peer {
namespace {

using Handle = CUmemGenericAllocationHandle;
constexpr CUmemAllocationHandleType kHandleType = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
constexpr uint32_t kPartTag = 4;  // Tag::kind of the messages below

/// A range of addresses with allocations behind it; unmapped at destruction.
class Range {
 public:
  Range() = default;
  ~Range() {
    for (const auto& [at, bytes] : mapped_) (void)api_->cuMemUnmap(at, bytes);
    if (base_ != 0) (void)api_->cuMemAddressFree(base_, bytes_);
  }
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;

  base::Status reserve(const Driver& api, uint64_t bytes) {
    api_ = &api;
    OVERLACE_TRY(api.status(api.cuMemAddressReserve(&base_, bytes, kHeapGranule, 0, 0), "cuMemAddressReserve"));
    bytes_ = bytes;
    return {};
  }
  base::Status map(uint64_t at, uint64_t bytes, Handle handle, const std::vector<int>& devices) {
    const CUdeviceptr place = base_ + at;
    OVERLACE_TRY(api_->status(api_->cuMemMap(place, bytes, 0, handle, 0), "cuMemMap"));
    mapped_.emplace_back(place, bytes);
    std::vector<CUmemAccessDesc> access(devices.size());
    for (size_t i = 0; i < devices.size(); ++i) {
      access[i].location.type = CU_MEM_LOCATION_TYPE_DEVICE;
      access[i].location.id = devices[i];
      access[i].flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    }
    return api_->status(api_->cuMemSetAccess(place, bytes, access.data(), access.size()), "cuMemSetAccess");
  }
  char* data() const { return reinterpret_cast<char*>(base_); }

 private:
  const Driver* api_ = nullptr;
  CUdeviceptr base_ = 0;
  uint64_t bytes_ = 0;
  std::vector<std::pair<CUdeviceptr, uint64_t>> mapped_;
};

/// Every rank's range. Ranks of one process share them: an owner reaches its parts through the ranges they are in (two
/// addresses of one word on one device would need alias fences), and the last rank unmaps, because kernels of others
/// may still store there.
struct Ranges {
  explicit Ranges(size_t world) : range(world) {}
  std::vector<Range> range;  // by rank; of processes only the own
  Range owned;               // processes: parts of other ranks' ranges that are mine
};

/// One collective set-up.
class Setup {
 public:
  Setup(const Driver& api, const HeapRequest& request, const StripePlan& plan)
      : api_(api),
        request_(request),
        plan_(plan),
        control_(request.control),
        me_(static_cast<size_t>(request.control.rank())),
        in_process_(request.control.in_process()) {
    const auto make = [&] { return std::make_shared<Ranges>(plan.parts.size()); };
    const uint64_t key = hash_word(plan.number, hash_text("stripes", control_.generation()));
    ranges_ = in_process_ ? std::static_pointer_cast<Ranges>(share_in_process(key, make)) : make();
    devices_ = {request.device};
    if (in_process_)
      for (const int rank : request.local) devices_.push_back(request.facts[static_cast<size_t>(rank)].ordinal);
    std::sort(devices_.begin(), devices_.end());
    devices_.erase(std::unique(devices_.begin(), devices_.end()), devices_.end());
  }
  ~Setup() {  // mappings keep their memory
    for (const Handle handle : created_) (void)api_.cuMemRelease(handle);
  }
  Setup(const Setup&) = delete;
  Setup& operator=(const Setup&) = delete;

  /// Memory of all parts that are mine; those of other ranks are sent to them.
  base::Status give() {
    uint64_t foreign = 0;
    for (size_t rank = 0; rank < plan_.parts.size(); ++rank)
      for (const StripePart& part : plan_.parts[rank]) foreign += is_mine(part) && rank != me_ ? part.bytes : 0;
    if (!in_process_ && foreign != 0) OVERLACE_TRY(ranges_->owned.reserve(api_, foreign));
    uint64_t at = 0;
    for (size_t rank = 0; rank < plan_.parts.size(); ++rank) {
      for (size_t i = 0; i < plan_.parts[rank].size(); ++i) {
        const StripePart& part = plan_.parts[rank][i];
        if (!is_mine(part)) continue;
        base::Result<Handle> handle = create_allocation(request_, part.bytes, "striped range");
        if (!handle.ok()) return handle.status();
        created_.push_back(*handle);
        if (rank == me_) continue;
        if (!in_process_) {
          OVERLACE_TRY(ranges_->owned.map(at, part.bytes, *handle, devices_));
          OVERLACE_TRY(zero(ranges_->owned.data() + at, part.bytes));
          at += part.bytes;
        }
        OVERLACE_TRY(send(static_cast<int>(rank), i, *handle));
      }
    }
    return {};
  }

  /// My range, of my own parts and of those that others sent.
  base::Status take() {
    uint64_t bytes = 0, at = 0;
    for (const StripePart& part : plan_.parts[me_]) bytes += part.bytes;
    OVERLACE_TRY(ranges_->range[me_].reserve(api_, bytes));
    for (size_t i = 0; i < plan_.parts[me_].size(); ++i) {
      const StripePart& part = plan_.parts[me_][i];
      Handle handle = is_mine(part) ? own_handle(i) : 0;
      if (!is_mine(part)) OVERLACE_TRY(receive(part.rank, i, &handle));
      const base::Status mapped = ranges_->range[me_].map(at, part.bytes, handle, devices_);
      if (!is_mine(part) && !in_process_) (void)api_.cuMemRelease(handle);
      if (!mapped.ok()) return base::error(mapped.code(), "part {} of rank {}: {}", i, part.rank, mapped.message());
      if (in_process_ || is_mine(part)) OVERLACE_TRY(zero(ranges_->range[me_].data() + at, part.bytes));
      at += part.bytes;
    }
    return {};
  }

  StripeMemory result() const {
    StripeMemory memory{.data = ranges_->range[me_].data(), .owned = {}, .mapping = ranges_};
    uint64_t at = 0;
    for (size_t rank = 0; rank < plan_.parts.size(); ++rank) {
      uint64_t in_range = 0;
      for (size_t i = 0; i < plan_.parts[rank].size(); ++i) {
        const StripePart& part = plan_.parts[rank][i];
        if (is_mine(part)) {
          const bool by_range = in_process_ || rank == me_;
          char* const data = by_range ? ranges_->range[rank].data() + in_range : ranges_->owned.data() + at;
          if (!by_range) at += part.bytes;
          memory.owned.push_back({static_cast<int>(rank), static_cast<int>(i), data, part.bytes});
        }
        in_range += part.bytes;
      }
    }
    return memory;
  }

 private:
  struct PartMessage {
    uint64_t part = 0;
    Handle handle = 0;  // threads; processes send a descriptor
  };

  bool is_mine(const StripePart& part) const { return static_cast<size_t>(part.rank) == me_; }
  Tag tag() const { return {plan_.number, kPartTag, 0}; }

  /// Handle of part `index` of my range, which is mine: give() made them in the order of ranks and parts.
  Handle own_handle(size_t index) const {
    size_t number = 0;
    for (size_t rank = 0; rank <= me_; ++rank)
      for (size_t i = 0; i < (rank == me_ ? index : plan_.parts[rank].size()); ++i)
        number += is_mine(plan_.parts[rank][i]) ? 1 : 0;
    return created_[number];
  }

  base::Status zero(char* memory, uint64_t bytes) const {
    OVERLACE_TRY(cuda_status(cudaMemset(memory, 0, bytes), "cudaMemset"));
    return cuda_status(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");
  }

  base::Status send(int to, size_t part, Handle handle) {
    const PartMessage message{part, in_process_ ? handle : 0};
    int fd = -1;
    if (!in_process_)
      OVERLACE_TRY(
          api_.status(api_.cuMemExportToShareableHandle(&fd, handle, kHandleType, 0), "cuMemExportToShareableHandle"));
    const base::Status status = control_.send(to, tag(), std::as_bytes(std::span(&message, 1)), fd);
    if (fd >= 0) (void)::close(fd);
    return status;
  }

  /// Parts of one owner come in the order of their numbers.
  base::Status receive(int from, size_t part, Handle* handle) {
    base::Result<Message> got = control_.receive(from, tag(), plan_.timeout_ms, "part of a striped range");
    if (!got.ok()) return got.status();
    PartMessage message;
    if (got->bytes.size() == sizeof message) std::memcpy(&message, got->bytes.data(), sizeof message);
    base::Status status;
    if (message.part != part || (got->fd < 0) != in_process_)
      status = base::error(Errc::internal, "striped range: rank {} sent part {}, wanted {}", from, message.part, part);
    *handle = message.handle;
    if (status.ok() && !in_process_) {
      void* const fd = reinterpret_cast<void*>(static_cast<intptr_t>(got->fd));
      status =
          api_.status(api_.cuMemImportFromShareableHandle(handle, fd, kHandleType), "cuMemImportFromShareableHandle");
    }
    if (got->fd >= 0) (void)::close(got->fd);
    return status;
  }

  const Driver& api_;
  const HeapRequest& request_;
  const StripePlan& plan_;
  Control& control_;
  const size_t me_;
  const bool in_process_;
  std::shared_ptr<Ranges> ranges_;
  std::vector<int> devices_;
  std::vector<Handle> created_;
};

}  // namespace

base::Result<StripeMemory> map_stripes(const HeapRequest& request, const StripePlan& plan) {
  const base::Result<const Driver*> api = driver();
  if (!api.ok()) return api.status();
  const DeviceGuard guard(request.device);
  Setup setup(**api, request, plan);
  OVERLACE_TRY(agree_on_status(request.control, setup.give(), plan.timeout_ms, "striped range, memory"));
  OVERLACE_TRY(agree_on_status(request.control, setup.take(), plan.timeout_ms, "striped range, mapping"));
  return setup.result();
}

uint64_t CudaPeerState::stripe_granule(std::string* why) const {
  for (int rank = 0; rank < world_; ++rank) {
    if (reach(rank) != Reach::net) continue;
    if (why != nullptr) *why = base::format("loads and stores do not reach rank {}", rank);
    return 0;
  }
  if (std::string_view(heap_->kind()) == "vmm") return kHeapGranule;
  if (why != nullptr)
    *why =
        base::format("a heap of kind {} cannot map parts of several ranks into one range; wanted vmm (OVERLACE_HEAP)",
                     heap_->kind());
  return 0;
}

base::Result<StripeMemory> CudaPeerState::stripe(const StripePlan& plan) {
  const HeapRequest request{control_, facts_, local_, device_, 0, options_.timeout_ms};
  return map_stripes(request, plan);
}

}  // namespace overlace::runtime::cuda_peer
