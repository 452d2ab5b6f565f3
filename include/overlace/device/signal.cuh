// Signals, words and waits of device code; the CPU twins are in include/overlace/signal.h, with the same meanings.
//
// A call belongs to one thread. For a CTA: its stores, a CTA barrier, then one thread signals; one thread waits, then a
// CTA barrier, then its loads.
#pragma once

#include "overlace/device/poll.cuh"

namespace overlace::device {

__device__ __forceinline__ char* heap_base(const TeamPod& team, int peer) {
  return peer < kPodPeers ? team.heap[peer] : team.heap_more[peer];
}
/// `offset` of the heap of `peer` in my mapping. Precondition: reach(peer) != net.
__device__ __forceinline__ void* peer_ptr(const TeamPod& team, int peer, uint64_t offset) {
  return heap_base(team, peer) + offset;
}
__device__ __forceinline__ uint64_t slot_offset(const TeamPod& team, uint32_t id, int sender) {
  return team.sig_off + (static_cast<uint64_t>(id) * team.sig_stride + static_cast<uint32_t>(sender)) * team.sig_pitch;
}
/// Slot (id, me) at `peer`: what I add to.
__device__ __forceinline__ uint64_t* remote_slot(const TeamPod& team, int peer, uint32_t id) {
  return static_cast<uint64_t*>(peer_ptr(team, peer, slot_offset(team, id, team.rank)));
}
/// Slot (id, sender) of mine: what I wait for.
__device__ __forceinline__ uint64_t* local_slot(const TeamPod& team, int sender, uint32_t id) {
  return static_cast<uint64_t*>(peer_ptr(team, team.rank, slot_offset(team, id, sender)));
}
__device__ __forceinline__ uint64_t* ticket_word(const TeamPod& team, int sender, uint32_t id) {
  return team.ticket + static_cast<uint64_t>(id) * team.sig_stride + sender;
}
/// Rolling compare: slots may pass 2^64.
__device__ __forceinline__ bool reached(uint64_t seen, uint64_t value) {
  return static_cast<int64_t>(seen - value) >= 0;
}

/// Release, system scope. Direct stores made before by this thread, and by its CTA before a CTA barrier, are visible on
/// `peer` after the wait_ge that this add satisfies. Bulk stores of this thread too, once fence() has returned.
__device__ __forceinline__ void signal_add(const ChannelPod& channel, int peer, uint32_t id, uint32_t delta = 1) {
  ptx::add_release_sys(remote_slot(channel.team, peer, id), delta);
}
/// Adds without any order: for use behind one fence_sys() that serves several signals.
__device__ __forceinline__ void signal_add_relaxed(const ChannelPod& channel, int peer, uint32_t id,
                                                   uint32_t delta = 1) {
  ptx::add_relaxed_sys(remote_slot(channel.team, peer, id), delta);
}
/// signal_add to every other rank of the team with one fence.
__device__ __forceinline__ void signal_add_all(const ChannelPod& channel, uint32_t id, uint32_t delta = 1) {
  ptx::fence_sys();
  for (int step = 1; step < channel.team.size; ++step)
    signal_add_relaxed(channel, (channel.team.rank + step) % channel.team.size, id, delta);
}
/// Release store of the new total by the only writer of the slot.
__device__ __forceinline__ void signal_post(const ChannelPod& channel, int peer, uint32_t id, uint64_t total) {
  ptx::store_release_sys(remote_slot(channel.team, peer, id), total);
}

/// Acquire, non-blocking.
[[nodiscard]] __device__ __forceinline__ bool test_ge(const ChannelPod& channel, int sender, uint32_t id,
                                                      uint64_t value) {
  return reached(ptx::load_acquire_sys(local_slot(channel.team, sender, id)), value);
}
/// Acquire. ok once the slot of `sender` is >= value (rolling compare); timeout or aborted: nothing may be read.
[[nodiscard]] __device__ __forceinline__ Errc wait_ge(const ChannelPod& channel, int sender, uint32_t id,
                                                      uint64_t value) {
  const uint64_t* slot = local_slot(channel.team, sender, id);
  return poll_until(channel.team, {WaitKind::signal, static_cast<uint32_t>(sender), id, value},
                    [slot, value](uint64_t& seen) { return reached(seen = ptx::load_acquire_sys(slot), value); });
}
/// Waits like wait_ge without any order: only before fence.proxy.async and bulk loads.
[[nodiscard]] __device__ __forceinline__ Errc wait_ge_relaxed(const ChannelPod& channel, int sender, uint32_t id,
                                                              uint64_t value) {
  const uint64_t* slot = local_slot(channel.team, sender, id);
  return poll_until(channel.team, {WaitKind::signal, static_cast<uint32_t>(sender), id, value},
                    [slot, value](uint64_t& seen) { return reached(seen = ptx::load_relaxed_sys(slot), value); });
}
/// wait_ge in a thread that then loads by bulk copies. Many CTAs wait for one slot while peers write to this GPU, and
/// polls of one word hold up what comes in (GEMM and ReduceScatter took 1040 us instead of 557 where a warp of each CTA
/// polled all the time): so polls order nothing and come ever more seldom. One acquire of what was seen follows. What
/// comes late is seen up to a pause later, in the fused ag_gemm too, and an abort some milliseconds later.
[[nodiscard]] __device__ __forceinline__ Errc wait_ge_async(const ChannelPod& channel, int sender, uint32_t id,
                                                            uint64_t value) {
  constexpr uint32_t kLongestPauseNs = 2048;
  const uint64_t* slot = local_slot(channel.team, sender, id);
  uint32_t pause_ns = 32;
  const Errc code = poll_until(channel.team, {WaitKind::signal, static_cast<uint32_t>(sender), id, value},
                               [slot, value, &pause_ns](uint64_t& seen) {
                                 if (reached(seen = ptx::load_relaxed_sys(slot), value)) return true;
                                 __nanosleep(pause_ns);
                                 if (pause_ns < kLongestPauseNs) pause_ns *= 2;
                                 return false;
                               });
  if (code == Errc::ok) (void)test_ge(channel, sender, id, value);
  ptx::fence_proxy_async();
  return code;
}

/// 8 aligned bytes, seen whole or not at all; orders nothing else.
__device__ __forceinline__ void put_word(const ChannelPod& channel, int peer, uint64_t dst_offset, uint64_t word) {
  ptx::store_relaxed_sys(static_cast<uint64_t*>(peer_ptr(channel.team, peer, dst_offset)), word);
}
/// Stores a word as put_word does, as a release: covers what a signal_add at its place would cover.
__device__ __forceinline__ void put_word_release(const ChannelPod& channel, int peer, uint64_t dst_offset,
                                                 uint64_t word) {
  ptx::store_release_sys(static_cast<uint64_t*>(peer_ptr(channel.team, peer, dst_offset)), word);
}
/// Value in the low half, epoch in the high half.
__device__ __forceinline__ uint64_t make_word(uint32_t low, uint32_t epoch) {
  return static_cast<uint64_t>(epoch) << 32 | low;
}

/// `id` of the record is the operator's wait site.
struct WordSite {
  uint32_t peer = 0, id = 0;
};

/// Acquire on a word of my own heap: holds when its high half equals `epoch`; gives the low half.
[[nodiscard]] __device__ __forceinline__ Errc wait_word(const ChannelPod& channel, uint64_t offset, uint32_t epoch,
                                                        uint32_t* low, const WordSite& site = {}) {
  const auto* word = static_cast<const uint64_t*>(peer_ptr(channel.team, channel.team.rank, offset));
  return poll_until(channel.team, {WaitKind::word, site.peer, site.id, epoch}, [=](uint64_t& seen) {
    seen = ptx::load_acquire_sys(word);
    *low = static_cast<uint32_t>(seen);
    return static_cast<uint32_t>(seen >> 32) == epoch;
  });
}
/// Waits like wait_word where the word is all there is to read: orders nothing.
[[nodiscard]] __device__ __forceinline__ Errc wait_word_relaxed(const ChannelPod& channel, uint64_t offset,
                                                                uint32_t epoch, uint32_t* low,
                                                                const WordSite& site = {}) {
  const auto* word = static_cast<const uint64_t*>(peer_ptr(channel.team, channel.team.rank, offset));
  return poll_until(channel.team, {WaitKind::word, site.peer, site.id, epoch}, [=](uint64_t& seen) {
    seen = ptx::load_relaxed_sys(word);
    *low = static_cast<uint32_t>(seen);
    return static_cast<uint32_t>(seen >> 32) == epoch;
  });
}
/// Acquire: int64(word - value) >= 0.
[[nodiscard]] __device__ __forceinline__ Errc wait_word_ge(const ChannelPod& channel, uint64_t offset, uint64_t value,
                                                           const WordSite& site = {}) {
  const auto* word = static_cast<const uint64_t*>(peer_ptr(channel.team, channel.team.rank, offset));
  return poll_until(channel.team, {WaitKind::word, site.peer, site.id, value},
                    [=](uint64_t& seen) { return reached(seen = ptx::load_acquire_sys(word), value); });
}

/// What this rank has consumed of the slot so far; consume() adds. At rest slot == ticket everywhere.
__device__ __forceinline__ uint64_t ticket(const ChannelPod& channel, int sender, uint32_t id) {
  return *ticket_word(channel.team, sender, id);
}
__device__ __forceinline__ void consume(const ChannelPod& channel, int sender, uint32_t id, uint64_t delta) {
  *ticket_word(channel.team, sender, id) += delta;
}

}  // namespace overlace::device
