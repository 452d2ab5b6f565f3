// Puts by bulk copies out of shared memory, and the calls that order them. The thread that issues them must also call
// fence, flush or quiet, as bulk groups belong to a thread.
#pragma once

#include "overlace/device/detail/bulk.cuh"
#include "overlace/device/put.cuh"

namespace overlace::device {

/// Copies `bytes` bytes from shared memory to `peer`. Both addresses are 16-byte aligned and `bytes` is a multiple of
/// 16. If ordinary stores wrote to `shared`, ptx::fence_shared_to_bulk in the writing threads and a CTA barrier come
/// first.
__device__ __forceinline__ void put_tma(const ChannelPod& channel, int peer, uint64_t dst_offset, const void* shared,
                                        uint32_t bytes) {
  ptx::bulk_store(peer_ptr(channel.team, peer, dst_offset), shared, bytes);
  ptx::bulk_commit();
}
/// Adds `bytes` bytes of elements to those at the destination; T is float, __nv_bfloat16 or __half. The order of
/// additions of several ranks is not fixed.
template <class T>
__device__ __forceinline__ void add_tma(const ChannelPod& channel, int peer, uint64_t dst_offset, const T* shared,
                                        uint32_t bytes) {
  ptx::bulk_add(static_cast<T*>(peer_ptr(channel.team, peer, dst_offset)), shared, bytes);
  ptx::bulk_commit();
}

/// Orders this thread's earlier puts before its later signals, to all peers. A wait for groups that were only read
/// (flush) is not enough: a signal could then overtake the data.
__device__ __forceinline__ void fence() { ptx::bulk_wait<0>(); }
/// Returns once the sources of this thread's puts may be reused.
__device__ __forceinline__ void flush() { ptx::bulk_wait_read<0>(); }
/// Returns once everything that this thread issued is visible at the peers.
__device__ __forceinline__ void quiet() {
  ptx::bulk_wait<0>();
  ptx::fence_sys();
}

}  // namespace overlace::device
