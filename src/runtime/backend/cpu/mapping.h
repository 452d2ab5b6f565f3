// Memory of the heaps of CPU ranks.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "src/base/status.h"
#include "src/runtime/backend.h"
#include "src/runtime/bootstrap/socket.h"

namespace overlace::runtime {

/// One range of addresses with all ranks' heaps, stride bytes apart, each aligned to 2 MiB. Unmapped at destruction.
class Mapping {
 public:
  /// A reservation without memory behind it, for heaps of up to `heap_bytes`.
  static base::Result<std::shared_ptr<Mapping>> reserve(int world, uint64_t heap_bytes);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  char* base(int rank) const { return first_ + static_cast<uint64_t>(rank) * stride_; }

 private:
  Mapping(void* address, uint64_t bytes, uint64_t stride);
  void* const address_;
  const uint64_t bytes_, stride_;
  char* first_;
};

/// Ranks on this rank's host, itself included.
std::vector<int> ranks_of_host(const OpenContext& context);

/// The heaps as one rank holds them.
struct Heaps {
  std::shared_ptr<Mapping> mapping;
  UniqueFd own;           // of my memfd; none where ranks are threads
  std::vector<int> near;  // ranks_of_host
  uint64_t bytes = 0;     // of each heap that have memory
  std::atomic<uint64_t>* usable =
      nullptr;  // of mine that have memory, where other hosts are believed to write; may be null
};
/// Threads: memory of this process, made by whoever comes first. Processes: a memfd per rank, descriptors passed over
/// the control plane; what stands for ranks on other hosts is reserved and stays empty, so that an address in it says
/// which byte of whose heap is meant. Collective. `limit`: to which the heaps may grow.
base::Result<Heaps> map_heaps(const OpenContext& context, uint64_t heap_bytes, uint64_t limit);
/// Collective, ends with an agreement: all heaps have `heap_bytes` of memory, or none has more than before.
base::Status grow_heaps(Control& control, int64_t timeout_ms, uint64_t heap_bytes, Heaps* heaps);

/// Pages of the owners' memfds in one range of addresses. Collective; ends with an agreement.
base::Result<StripeMemory> map_stripes(Control& control, const StripePlan& plan);

/// out_of_memory unless `bytes` fit into what the machine has left: a memfd that is too large would not fail, it would
/// fill the machine first.
base::Status check_available(uint64_t bytes, const std::string& what);

}  // namespace overlace::runtime
