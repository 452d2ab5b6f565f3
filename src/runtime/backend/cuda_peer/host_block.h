// Pinned host memory that kernels write: zeroed, visible to every device of the process.
#pragma once

#include <cstring>
#include <memory>

#include "overlace/handle_pod.h"
#include "src/runtime/backend/cuda_peer/check.h"

namespace overlace::runtime::cuda_peer {

struct PinnedFree {
  void operator()(void* memory) const { (void)cudaFreeHost(memory); }
};
template <class T>
using Pinned = std::unique_ptr<T[], PinnedFree>;

/// `count` zeroed elements; the address is valid on host and devices.
template <class T>
base::Result<Pinned<T>> allocate_pinned(size_t count) {
  void* memory = nullptr;
  OVERLACE_TRY(cuda_status(cudaHostAlloc(&memory, count * sizeof(T), cudaHostAllocPortable | cudaHostAllocMapped),
                           "cudaHostAlloc"));
  std::memset(memory, 0, count * sizeof(T));
  return Pinned<T>(static_cast<T*>(memory));
}

/// What kernels and host share of a rank's failures.
struct HostBlock {
  uint32_t abort_word;
  uint32_t pipeline;  // pipeline_word() as the host has seen it last
  alignas(64) TimeoutRecord record;
};

}  // namespace overlace::runtime::cuda_peer
