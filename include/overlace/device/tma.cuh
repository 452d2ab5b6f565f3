// Puts by bulk copies out of shared memory, and the calls that order them. One thread issues them and later calls
// fence, flush or quiet: groups belong to the thread.
#pragma once

#include "overlace/device/detail/bulk.cuh"
#include "overlace/device/put.cuh"

namespace overlace::device {

/// Addresses 16-byte aligned, bytes a multiple of 16. What ordinary stores wrote to `shared` needs
/// ptx::fence_shared_to_bulk in the writing threads and a CTA barrier first.
__device__ __forceinline__ void put_tma(const ChannelPod& channel, int peer, uint64_t dst_offset, const void* shared,
                                        uint32_t bytes) {
  ptx::bulk_store(peer_ptr(channel.team, peer, dst_offset), shared, bytes);
  ptx::bulk_commit();
}
/// Adds to what is there: T is float, __nv_bfloat16 or __half. The order of additions of several ranks is not fixed.
template <class T>
__device__ __forceinline__ void add_tma(const ChannelPod& channel, int peer, uint64_t dst_offset, const T* shared,
                                        uint32_t bytes) {
  ptx::bulk_add(static_cast<T*>(peer_ptr(channel.team, peer, dst_offset)), shared, bytes);
  ptx::bulk_commit();
}

/// Orders this thread's earlier puts before its later signals, to all peers. A wait for groups that were only read
/// (flush) is not enough: a signal could then overtake the data.
__device__ __forceinline__ void fence() { ptx::bulk_wait<0>(); }
/// Sources of this thread's puts may be reused.
__device__ __forceinline__ void flush() { ptx::bulk_wait_read<0>(); }
/// Everything this thread issued is visible at the peers.
__device__ __forceinline__ void quiet() {
  ptx::bulk_wait<0>();
  ptx::fence_sys();
}

}  // namespace overlace::device
