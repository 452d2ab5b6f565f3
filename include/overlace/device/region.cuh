// Puts into adopted memory. They are those of put.cuh and tma.cuh, with the bases of the region in place of the heap's.
#pragma once

#include "overlace/device/tma.cuh"

namespace overlace::device {

/// Returns the address at which this rank reaches `offset` of the memory of `peer`. Precondition: reach(peer) != net.
__device__ __forceinline__ void* peer_ptr(const RegionPod& region, int peer, uint64_t offset) {
  return (peer < kPodPeers ? region.base[peer] : region.base_more[peer]) + offset;
}

__device__ __forceinline__ void put_thread(const RegionPod& region, int peer, uint64_t dst_offset, const void* src,
                                           uint64_t bytes) {
  detail::copy_bytes(peer_ptr(region, peer, dst_offset), src, bytes, 0, 1);
}
__device__ __forceinline__ void put_warp(const RegionPod& region, int peer, uint64_t dst_offset, const void* src,
                                         uint64_t bytes) {
  detail::copy_bytes(peer_ptr(region, peer, dst_offset), src, bytes, threadIdx.x % 32, 32);
}
__device__ __forceinline__ void put_cta(const RegionPod& region, int peer, uint64_t dst_offset, const void* src,
                                        uint64_t bytes) {
  detail::copy_bytes(peer_ptr(region, peer, dst_offset), src, bytes, threadIdx.x, blockDim.x);
}
/// Puts into a region, then adds `delta` to signal `id` of the channel.
__device__ __forceinline__ void put_signal(const ChannelPod& channel, const RegionPod& region, int peer,
                                           uint64_t dst_offset, const void* src, uint64_t bytes, uint32_t id,
                                           uint32_t delta = 1) {
  put_cta(region, peer, dst_offset, src, bytes);
  __syncthreads();
  if (threadIdx.x == 0) signal_add(channel, peer, id, delta);
}
__device__ __forceinline__ void put_tma(const RegionPod& region, int peer, uint64_t dst_offset, const void* shared,
                                        uint32_t bytes) {
  ptx::bulk_store(peer_ptr(region, peer, dst_offset), shared, bytes);
  ptx::bulk_commit();
}
template <class T>
__device__ __forceinline__ void add_tma(const RegionPod& region, int peer, uint64_t dst_offset, const T* shared,
                                        uint32_t bytes) {
  ptx::bulk_add(static_cast<T*>(peer_ptr(region, peer, dst_offset)), shared, bytes);
  ptx::bulk_commit();
}

}  // namespace overlace::device
