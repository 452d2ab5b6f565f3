// Signals, words and waits. The functions for CPU ranks, with these names and meanings, are in overlace/signal.h.
//
// A call belongs to one thread. To signal for a CTA: its stores, a CTA barrier, then one thread signals. To wait for a
// CTA: one thread waits, then a CTA barrier, then its loads. `peer` and `sender` are ranks of the team.
#pragma once

#include "overlace/device/poll.cuh"

namespace overlace::device {

/// Returns the address at which this rank reaches the heap of `peer`.
__device__ __forceinline__ char* heap_base(const TeamPod& team, int peer) {
  return peer < kPodPeers ? team.heap[peer] : team.heap_more[peer];
}
/// Returns the address at which this rank reaches `offset` of the heap of `peer`. Precondition: reach(peer) != net.
__device__ __forceinline__ void* peer_ptr(const TeamPod& team, int peer, uint64_t offset) {
  return heap_base(team, peer) + offset;
}
/// Returns the offset of slot (id, sender) in every heap.
__device__ __forceinline__ uint64_t slot_offset(const TeamPod& team, uint32_t id, int sender) {
  return team.sig_off + (static_cast<uint64_t>(id) * team.sig_stride + static_cast<uint32_t>(sender)) * team.sig_pitch;
}
/// Returns the slot of this rank at `peer`, to which signal_add adds.
__device__ __forceinline__ uint64_t* remote_slot(const TeamPod& team, int peer, uint32_t id) {
  return static_cast<uint64_t*>(peer_ptr(team, peer, slot_offset(team, id, team.rank)));
}
/// Returns the slot of `sender` at this rank, for which wait_ge waits.
__device__ __forceinline__ uint64_t* local_slot(const TeamPod& team, int sender, uint32_t id) {
  return static_cast<uint64_t*>(peer_ptr(team, team.rank, slot_offset(team, id, sender)));
}
/// Returns the word that counts what this rank has consumed of a slot.
__device__ __forceinline__ uint64_t* ticket_word(const TeamPod& team, int sender, uint32_t id) {
  return team.ticket + static_cast<uint64_t>(id) * team.sig_stride + sender;
}
/// Returns true if `seen` has reached `value`, by a rolling compare: slots may pass 2^64.
__device__ __forceinline__ bool reached(uint64_t seen, uint64_t value) {
  return static_cast<int64_t>(seen - value) >= 0;
}

/// Adds `delta` to signal `id` of `peer`, with release order at system scope. Direct stores that this thread made
/// before, or its CTA before a CTA barrier, are visible on `peer` after the wait_ge that this add satisfies. So are
/// bulk stores of this thread, after fence() has returned.
__device__ __forceinline__ void signal_add(const ChannelPod& channel, int peer, uint32_t id, uint32_t delta = 1) {
  ptx::add_release_sys(remote_slot(channel.team, peer, id), delta);
}
/// Adds without any order, for use behind one fence_sys() that serves several signals.
__device__ __forceinline__ void signal_add_relaxed(const ChannelPod& channel, int peer, uint32_t id,
                                                   uint32_t delta = 1) {
  ptx::add_relaxed_sys(remote_slot(channel.team, peer, id), delta);
}
/// Does signal_add to every other rank of the team, with one fence for all.
__device__ __forceinline__ void signal_add_all(const ChannelPod& channel, uint32_t id, uint32_t delta = 1) {
  ptx::fence_sys();
  for (int step = 1; step < channel.team.size; ++step)
    signal_add_relaxed(channel, (channel.team.rank + step) % channel.team.size, id, delta);
}
/// Stores the new total of a slot with release order; only for the single writer of the slot.
__device__ __forceinline__ void signal_post(const ChannelPod& channel, int peer, uint32_t id, uint64_t total) {
  ptx::store_release_sys(remote_slot(channel.team, peer, id), total);
}

/// Returns true if the slot of `sender` is >= value (rolling compare), with acquire order. Does not block.
[[nodiscard]] __device__ __forceinline__ bool test_ge(const ChannelPod& channel, int sender, uint32_t id,
                                                      uint64_t value) {
  return reached(ptx::load_acquire_sys(local_slot(channel.team, sender, id)), value);
}
/// Waits until the slot of `sender` is >= value (rolling compare), with acquire order. After timeout or aborted nothing
/// may be read.
[[nodiscard]] __device__ __forceinline__ Errc wait_ge(const ChannelPod& channel, int sender, uint32_t id,
                                                      uint64_t value) {
  const uint64_t* slot = local_slot(channel.team, sender, id);
  return poll_until(channel.team, {WaitKind::signal, static_cast<uint32_t>(sender), id, value},
                    [slot, value](uint64_t& seen) { return reached(seen = ptx::load_acquire_sys(slot), value); });
}
/// Waits as wait_ge does, without any order: only before fence.proxy.async and bulk loads.
[[nodiscard]] __device__ __forceinline__ Errc wait_ge_relaxed(const ChannelPod& channel, int sender, uint32_t id,
                                                              uint64_t value) {
  const uint64_t* slot = local_slot(channel.team, sender, id);
  return poll_until(channel.team, {WaitKind::signal, static_cast<uint32_t>(sender), id, value},
                    [slot, value](uint64_t& seen) { return reached(seen = ptx::load_relaxed_sys(slot), value); });
}
/// Pauses between polls, since polls delay what arrives: from 32 ns on, each longer than the one before by the
/// `kPart`th part of it, until 2048 ns. So what comes is seen late by that part of the time waited, about.
template <uint32_t kPart>
struct BackOff {
  uint32_t pause_ns = 32;

  __device__ __forceinline__ void pause() {
    constexpr uint32_t kLongestNs = 2048;
    __nanosleep(pause_ns);
    if (pause_ns < kLongestNs) pause_ns += pause_ns / kPart;
  }
};

/// Waits as wait_ge does, in a thread that then loads by bulk copies. Many CTAs wait for one slot while peers write to
/// this GPU, and polls of one word delay what arrives: a GEMM with ReduceScatter took 1040 us instead of 557 us when a
/// warp of each CTA polled all the time. Therefore polls are unordered and become rarer, and one acquire follows. A
/// late signal is seen up to 2 us late, and an abort some milliseconds late.
[[nodiscard]] __device__ __forceinline__ Errc wait_ge_async(const ChannelPod& channel, int sender, uint32_t id,
                                                            uint64_t value) {
  const uint64_t* slot = local_slot(channel.team, sender, id);
  BackOff<1> polls;
  const Errc code = poll_until(channel.team, {WaitKind::signal, static_cast<uint32_t>(sender), id, value},
                               [slot, value, &polls](uint64_t& seen) {
                                 if (reached(seen = ptx::load_relaxed_sys(slot), value)) return true;
                                 polls.pause();
                                 return false;
                               });
  if (code == Errc::ok) (void)test_ge(channel, sender, id, value);
  ptx::fence_proxy_async();
  return code;
}

/// Stores 8 aligned bytes, which are seen whole or not at all; orders nothing else.
__device__ __forceinline__ void put_word(const ChannelPod& channel, int peer, uint64_t dst_offset, uint64_t word) {
  ptx::store_relaxed_sys(static_cast<uint64_t*>(peer_ptr(channel.team, peer, dst_offset)), word);
}
/// Stores a word as put_word does, with release order: it covers what a signal_add at its place would cover.
__device__ __forceinline__ void put_word_release(const ChannelPod& channel, int peer, uint64_t dst_offset,
                                                 uint64_t word) {
  ptx::store_release_sys(static_cast<uint64_t*>(peer_ptr(channel.team, peer, dst_offset)), word);
}
/// Returns a word with a value in its low half and an epoch in its high half.
__device__ __forceinline__ uint64_t make_word(uint32_t low, uint32_t epoch) {
  return static_cast<uint64_t>(epoch) << 32 | low;
}

/// A part of the record of a failed wait for a word: the peer, and an `id` that the operator chooses.
struct WordSite {
  uint32_t peer = 0, id = 0;
};

/// Waits until the high half of a word of this rank's heap equals `epoch`, with acquire order. `low` takes the low
/// half.
[[nodiscard]] __device__ __forceinline__ Errc wait_word(const ChannelPod& channel, uint64_t offset, uint32_t epoch,
                                                        uint32_t* low, const WordSite& site = {}) {
  const auto* word = static_cast<const uint64_t*>(peer_ptr(channel.team, channel.team.rank, offset));
  return poll_until(channel.team, {WaitKind::word, site.peer, site.id, epoch}, [=](uint64_t& seen) {
    seen = ptx::load_acquire_sys(word);
    *low = static_cast<uint32_t>(seen);
    return static_cast<uint32_t>(seen >> 32) == epoch;
  });
}
/// Waits as wait_word does if the word is all that is read: orders nothing.
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
/// Waits until int64(word - value) >= 0 for a word of this rank's heap, with acquire order.
[[nodiscard]] __device__ __forceinline__ Errc wait_word_ge(const ChannelPod& channel, uint64_t offset, uint64_t value,
                                                           const WordSite& site = {}) {
  const auto* word = static_cast<const uint64_t*>(peer_ptr(channel.team, channel.team.rank, offset));
  return poll_until(channel.team, {WaitKind::word, site.peer, site.id, value},
                    [=](uint64_t& seen) { return reached(seen = ptx::load_acquire_sys(word), value); });
}

/// Returns what this rank has consumed of the slot so far; consume() adds to it. When no call is under way, slot and
/// ticket are equal everywhere.
__device__ __forceinline__ uint64_t ticket(const ChannelPod& channel, int sender, uint32_t id) {
  return *ticket_word(channel.team, sender, id);
}
__device__ __forceinline__ void consume(const ChannelPod& channel, int sender, uint32_t id, uint64_t delta) {
  *ticket_word(channel.team, sender, id) += delta;
}

}  // namespace overlace::device
