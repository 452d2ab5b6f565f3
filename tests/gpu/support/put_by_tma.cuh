// A put of any length through shared memory, by all threads of a block.
#pragma once

#include "overlace/device/region.cuh"
#include "overlace/device/tma.cuh"

namespace overlace::test {

/// `to`: a ChannelPod (its team's heaps) or a RegionPod (adopted memory).
template <class To>
__device__ void put_by_tma(const To& to, int peer, uint64_t offset, const char* src, uint64_t bytes) {
  constexpr uint32_t kStage = 8192;
  __shared__ alignas(128) char stage[kStage];
  for (uint64_t at = 0; at < bytes; at += kStage) {
    const uint32_t part = bytes - at < kStage ? static_cast<uint32_t>(bytes - at) : kStage;
    for (uint32_t i = threadIdx.x; i < part; i += blockDim.x) stage[i] = src[at + i];
    device::ptx::fence_shared_to_bulk();
    __syncthreads();
    if (threadIdx.x == 0) {
      device::put_tma(to, peer, offset + at, stage, part);
      device::flush();
    }
    __syncthreads();
  }
}

}  // namespace overlace::test
