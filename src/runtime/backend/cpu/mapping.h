// Memory of the heaps of CPU ranks.
#pragma once

#include <memory>
#include <vector>

#include "src/base/status.h"
#include "src/runtime/backend.h"

namespace overlace::runtime {

/// One range of addresses with all ranks' heaps, stride bytes apart, each aligned to 2 MiB. Unmapped at destruction.
class Mapping {
 public:
  /// A reservation without memory behind it.
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

/// Threads: memory of this process, made by whoever comes first. Processes: a memfd per rank, descriptors passed over
/// the control plane. Collective.
base::Result<std::shared_ptr<Mapping>> map_heaps(const OpenContext& context, uint64_t heap_bytes);

}  // namespace overlace::runtime
