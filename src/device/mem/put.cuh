// Puts by stores: of a thread, a warp, or all threads of a block, to a peer's heap. Any alignment; 16-byte stores where
// both sides allow them.
#pragma once

#include "src/device/sync/signal.cuh"

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

/// `lanes` threads share the bytes; thread `lane` calls with its number.
__device__ __forceinline__ void copy_bytes(void* dst, const void* src, uint64_t bytes, uint32_t lane, uint32_t lanes) {
  const uint64_t to = reinterpret_cast<uint64_t>(dst), from = reinterpret_cast<uint64_t>(src);
  const uint64_t differ = (to ^ from) & 15;
  const uint32_t unit = differ == 0 ? 16 : differ % 8 == 0 ? 8 : differ % 4 == 0 ? 4 : 1;
  uint64_t head = (unit - to % unit) % unit;
  if (head > bytes) head = bytes;
  char* d = static_cast<char*>(dst);
  const char* s = static_cast<const char*>(src);
  for (uint64_t i = lane; i < head; i += lanes) d[i] = s[i];
  const uint64_t count = (bytes - head) / unit, done = head + count * unit;
  if (unit == 16) {
    copy_units<uint4>(d + head, s + head, count, lane, lanes);
  } else if (unit == 8) {
    copy_units<uint64_t>(d + head, s + head, count, lane, lanes);
  } else if (unit == 4) {
    copy_units<uint32_t>(d + head, s + head, count, lane, lanes);
  } else {
    copy_units<char>(d + head, s + head, count, lane, lanes);
  }
  for (uint64_t i = done + lane; i < bytes; i += lanes) d[i] = s[i];
}

}  // namespace detail

/// Unordered until a signal of the same thread (put_thread), or of one thread after a warp or CTA barrier.
__device__ __forceinline__ void put_thread(const ChannelPod& channel, int peer, uint64_t dst_offset, const void* src,
                                           uint64_t bytes) {
  detail::copy_bytes(peer_ptr(channel.team, peer, dst_offset), src, bytes, 0, 1);
}
/// All 32 lanes of a warp call it; blockDim.x is a multiple of 32.
__device__ __forceinline__ void put_warp(const ChannelPod& channel, int peer, uint64_t dst_offset, const void* src,
                                         uint64_t bytes) {
  detail::copy_bytes(peer_ptr(channel.team, peer, dst_offset), src, bytes, threadIdx.x % 32, 32);
}
/// All threads of a block call it.
__device__ __forceinline__ void put_cta(const ChannelPod& channel, int peer, uint64_t dst_offset, const void* src,
                                        uint64_t bytes) {
  detail::copy_bytes(peer_ptr(channel.team, peer, dst_offset), src, bytes, threadIdx.x, blockDim.x);
}

/// All threads of a block: put, then a signal that implies this put's payload (and all stores of the block before).
__device__ __forceinline__ void put_signal(const ChannelPod& channel, int peer, uint64_t dst_offset, const void* src,
                                           uint64_t bytes, uint32_t id, uint32_t delta = 1) {
  put_cta(channel, peer, dst_offset, src, bytes);
  __syncthreads();
  if (threadIdx.x == 0) signal_add(channel, peer, id, delta);
}

}  // namespace overlace::device
