// Puts by stores of a thread, a warp, or all threads of a block to a peer's heap. Any alignment works; stores have 16
// bytes if both sides allow it. Offsets and sizes are in bytes, and the source is memory of this GPU.
#pragma once

#include "overlace/device/signal.cuh"

namespace overlace::device {
namespace detail {

template <class Unit>
__device__ __forceinline__ void copy_units(void* dst, const void* src, uint64_t count, uint32_t lane, uint32_t lanes) {
  auto* to = static_cast<Unit*>(dst);
  const auto* from = static_cast<const Unit*>(src);
  uint64_t i = lane;
  for (; i + 3ull * lanes < count; i += 4ull * lanes) {  // four independent loads in flight
    const Unit a = from[i], b = from[i + lanes], c = from[i + 2 * lanes], d = from[i + 3 * lanes];
    to[i] = a;
    to[i + lanes] = b;
    to[i + 2 * lanes] = c;
    to[i + 3 * lanes] = d;
  }
  for (; i < count; i += lanes) to[i] = from[i];
}

/// Copies with units of one type. Both sides must have equal offsets from a multiple of the unit.
template <class Unit>
__device__ __forceinline__ void copy_as(char* dst, const char* src, uint64_t bytes, uint32_t lane, uint32_t lanes) {
  constexpr uint64_t kMask = sizeof(Unit) - 1;
  uint64_t head = (0 - reinterpret_cast<uint64_t>(dst)) & kMask;
  if (head > bytes) head = bytes;
  const uint64_t middle = (bytes - head) & ~kMask;
  for (uint64_t i = lane; i < head; i += lanes) dst[i] = src[i];
  copy_units<Unit>(dst + head, src + head, middle / sizeof(Unit), lane, lanes);
  for (uint64_t i = head + middle + lane; i < bytes; i += lanes) dst[i] = src[i];
}

/// Copies bytes that `lanes` threads share; thread `lane` calls with its number. Masks and shifts only: three divisions
/// by a unit known at run time cost a 4 KiB put 0.3 us of its 2.5 us.
__device__ __forceinline__ void copy_bytes(void* dst, const void* src, uint64_t bytes, uint32_t lane, uint32_t lanes) {
  const uint64_t differ = reinterpret_cast<uint64_t>(dst) ^ reinterpret_cast<uint64_t>(src);
  auto* to = static_cast<char*>(dst);
  const auto* from = static_cast<const char*>(src);
  if ((differ & 15) == 0) {
    copy_as<uint4>(to, from, bytes, lane, lanes);
  } else if ((differ & 7) == 0) {
    copy_as<uint64_t>(to, from, bytes, lane, lanes);
  } else if ((differ & 3) == 0) {
    copy_as<uint32_t>(to, from, bytes, lane, lanes);
  } else {
    copy_units<char>(to, from, bytes, lane, lanes);
  }
}

}  // namespace detail

/// Puts by one thread. The put is unordered until a signal of that thread follows.
__device__ __forceinline__ void put_thread(const ChannelPod& channel, int peer, uint64_t dst_offset, const void* src,
                                           uint64_t bytes) {
  detail::copy_bytes(peer_ptr(channel.team, peer, dst_offset), src, bytes, 0, 1);
}
/// Puts by a warp: all 32 lanes call it, and blockDim.x is a multiple of 32. The put is unordered until a warp barrier
/// and a signal of one thread follow.
__device__ __forceinline__ void put_warp(const ChannelPod& channel, int peer, uint64_t dst_offset, const void* src,
                                         uint64_t bytes) {
  detail::copy_bytes(peer_ptr(channel.team, peer, dst_offset), src, bytes, threadIdx.x % 32, 32);
}
/// Puts by a block: all its threads call it. The put is unordered until a CTA barrier and a signal of one thread
/// follow. Blocks that share a long put take interleaved pieces of about 256 KiB: with pieces of 64 KiB 8 blocks reach
/// 330 GB/s to a peer instead of 350 GB/s, and with one part each 132 blocks reach 340 GB/s instead of 362 GB/s.
__device__ __forceinline__ void put_cta(const ChannelPod& channel, int peer, uint64_t dst_offset, const void* src,
                                        uint64_t bytes) {
  detail::copy_bytes(peer_ptr(channel.team, peer, dst_offset), src, bytes, threadIdx.x, blockDim.x);
}

/// Puts by all threads of a block, then adds `delta` to signal `id` of `peer`. The signal implies the payload of this
/// put and all stores of the block before.
__device__ __forceinline__ void put_signal(const ChannelPod& channel, int peer, uint64_t dst_offset, const void* src,
                                           uint64_t bytes, uint32_t id, uint32_t delta = 1) {
  put_cta(channel, peer, dst_offset, src, bytes);
  __syncthreads();
  if (threadIdx.x == 0) signal_add(channel, peer, id, delta);
}

}  // namespace overlace::device
