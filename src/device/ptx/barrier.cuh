// Barriers of some warps of a CTA, by number; 0 is that of __syncthreads. Release and acquire at CTA scope.
#pragma once

#include <cstdint>

namespace overlace::device::ptx {

/// All lanes of the warp; over once kThreads threads have come to the barrier, by this or by arrive.
template <int kThreads>
__device__ __forceinline__ void named_barrier_sync(uint32_t number) {
  asm volatile("barrier.sync.aligned %0, %1;" ::"r"(number), "n"(kThreads) : "memory");
}
/// Comes, but does not wait.
template <int kThreads>
__device__ __forceinline__ void named_barrier_arrive(uint32_t number) {
  asm volatile("barrier.arrive.aligned %0, %1;" ::"r"(number), "n"(kThreads) : "memory");
}

}  // namespace overlace::device::ptx
