// Signals, puts and waits of CPU agents. The device twins in src/device bear the same names and meanings.
//
// An agent is a CPU thread: flush(), quiet() and fence() speak of what the calling thread issued.
//
// A signal only grows; one 64-bit slot per (id, sender) at the receiver; never reset: wait for a value, not for a
// change.
#pragma once

#include <cstddef>
#include <cstdint>

#include "overlace/channel.h"
#include "overlace/errc_pod.h"
#include "overlace/symmetric.h"

namespace overlace {

#pragma GCC visibility push(default)  // exported by liboverlace.so

/// Starts a put, without blocking, unordered and byte by byte: `bytes` from `src` to offset `dst_offset` of `peer`'s
/// heap. The source must not change before flush().
void put(const ChannelPod& channel, int peer, uint64_t dst_offset, const void* src, size_t bytes);
/// Puts `rows` rows of `row_bytes` each; pitches are in bytes.
void put_2d(const ChannelPod& channel, int peer, uint64_t dst_offset, size_t dst_pitch, const void* src,
            size_t src_pitch, size_t row_bytes, size_t rows);
/// Does put, then signal_add; the signal implies this put's payload only. If several are on their way to one slot, the
/// later may be counted first: where one slot counts puts, use put, fence, signal_add.
void put_signal(const ChannelPod& channel, int peer, uint64_t dst_offset, const void* src, size_t bytes, uint32_t id,
                uint32_t delta = 1);
// Put, put_2d and put_signal to an offset of adopted memory.
void put(const ChannelPod& channel, const RegionPod& region, int peer, uint64_t dst_offset, const void* src,
         size_t bytes);
void put_2d(const ChannelPod& channel, const RegionPod& region, int peer, uint64_t dst_offset, size_t dst_pitch,
            const void* src, size_t src_pitch, size_t row_bytes, size_t rows);
void put_signal(const ChannelPod& channel, const RegionPod& region, int peer, uint64_t dst_offset, const void* src,
                size_t bytes, uint32_t id, uint32_t delta = 1);
/// Returns the address in this process of an offset of adopted memory; null where reach is net.
void* peer_ptr(const RegionPod& region, int peer, uint64_t offset);

/// Puts 8 aligned bytes, which are seen whole or not at all; orders nothing else.
void put_word(const ChannelPod& channel, int peer, uint64_t dst_offset, uint64_t word);
/// Does put_word with release order: it covers what a signal_add at its place would cover.
void put_word_release(const ChannelPod& channel, int peer, uint64_t dst_offset, uint64_t word);

/// Release. Direct stores made before by this thread are visible on `peer` after the wait_ge this add satisfies.
/// Puts are not covered: call fence(channel, peer) between put and signal_add, or use put_signal.
void signal_add(const ChannelPod& channel, int peer, uint32_t id, uint32_t delta = 1);
/// Release store of the new total by the only writer of the slot.
void signal_post(const ChannelPod& channel, int peer, uint32_t id, uint64_t total);

/// Acquire, non-blocking: the slot of `sender` is >= value (rolling compare). Partner of signal_add, signal_post.
[[nodiscard]] bool test_ge(const ChannelPod& channel, int sender, uint32_t id, uint64_t value);
/// Acquire. ok once test_ge holds; timeout or aborted: nothing may be read.
[[nodiscard]] Errc wait_ge(const ChannelPod& channel, int sender, uint32_t id, uint64_t value);
/// Acquire. Waits until the high half of a put_word of my own heap equals `epoch`; gives the low half.
[[nodiscard]] Errc wait_word(const ChannelPod& channel, uint64_t offset, uint32_t epoch, uint32_t* low);
/// Acquire: int64(word - value) >= 0.
[[nodiscard]] Errc wait_word_ge(const ChannelPod& channel, uint64_t offset, uint64_t value);
/// What this rank has consumed of the slot so far; consume() adds. At rest slot == ticket everywhere.
uint64_t ticket(const ChannelPod& channel, int sender, uint32_t id);
void consume(const ChannelPod& channel, int sender, uint32_t id, uint64_t delta);

// ---- inbox: one call of each per epoch and peer; all ranks advance together ----

/// Returns the number of the epoch that runs now, from 1.
uint64_t inbox_epoch(const InboxPod& inbox);
/// Returns the offset at which this epoch's buffer begins in every heap.
uint64_t inbox_offset(const InboxPod& inbox);
/// Acquire. ok once `peer` has given credit for what I sent there `buffers` epochs ago, or before: I may write into
/// this epoch's buffer there. Partner of inbox_release.
[[nodiscard]] Errc inbox_wait_credit(const ChannelPod& channel, const InboxPod& inbox, int peer);
/// Does a put to `where` in this epoch's buffer of `peer`, a fence and one data signal. Call inbox_wait_credit before.
/// Other ways of writing are fine: then signal_add(data_id) follows, after a fence where puts were used.
void inbox_put(const ChannelPod& channel, const InboxPod& inbox, int peer, uint64_t where, const void* src,
               size_t bytes);
/// Notes that I have sent to `peer` in this epoch and expect its credit. Call it after the last inbox_wait_credit of
/// that peer.
void inbox_sent(const ChannelPod& channel, const InboxPod& inbox, int peer);
/// Acquire. ok once `adds` data signals of `sender` have come in this epoch. All adds of one epoch come before those of
/// the next.
[[nodiscard]] Errc inbox_wait_data(const ChannelPod& channel, const InboxPod& inbox, int sender, uint64_t adds = 1);
/// Release. Call it when my agents have read what `sender` sent: it consumes the `adds` signals and gives credit. Call
/// it for each rank that sent in this epoch, and no other.
void inbox_release(const ChannelPod& channel, const InboxPod& inbox, int sender, uint64_t adds = 1);
/// Begins the next epoch; one agent calls it once this rank is done with all of the above.
void inbox_advance(const InboxPod& inbox);

// ---- local counters ----

/// Release, among the agents of this rank.
void counter_add(const ChannelPod& channel, const CountersPod& counters, uint32_t index, uint64_t delta = 1);
/// Release and acquire. Returns the new total: whoever reaches the last one sees what all others did before.
uint64_t counter_arrive(const ChannelPod& channel, const CountersPod& counters, uint32_t index, uint64_t delta = 1);
/// Acquire: int64(counter - value) >= 0. Its TimeoutRecord names the counter.
[[nodiscard]] Errc counter_wait_ge(const ChannelPod& channel, const CountersPod& counters, uint32_t index,
                                   uint64_t value);

/// Blocking read of a peer's heap; the emulated link paces it.
[[nodiscard]] Errc get(const ChannelPod& channel, int peer, uint64_t src_offset, void* dst, size_t bytes);
[[nodiscard]] Errc get(const ChannelPod& channel, const RegionPod& region, int peer, uint64_t src_offset, void* dst,
                       size_t bytes);

/// Orders this agent's earlier puts to `peer` before its later signals to it.
void fence(const ChannelPod& channel, int peer);
/// Returns when the sources of my puts may be reused.
[[nodiscard]] Errc flush(const ChannelPod& channel);
/// Returns when everything that I issued is visible at every peer.
[[nodiscard]] Errc quiet(const ChannelPod& channel);
/// Barrier of all ranks of the team; release and acquire, all to all, through slots.
[[nodiscard]] Errc barrier(const ChannelPod& channel);

#pragma GCC visibility pop

}  // namespace overlace
