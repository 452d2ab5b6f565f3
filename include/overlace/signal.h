// Signals, puts and waits of CPU agents. The functions of overlace/device have these names and meanings for kernels.
//
// An agent is a CPU thread: flush(), quiet() and fence() concern what the calling thread issued.
//
// A signal is a 64-bit slot per (id, sender) at the receiver that only grows and is never reset: wait for a value, not
// for a change. `id` must come from Channel::ids, `peer` and `sender` are ranks of the team, and sizes and offsets are
// in bytes. The words "I" and "my" in this header stand for the calling rank.
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
/// Does put, then signal_add; the signal implies the payload of this put only. If several are under way to one slot, a
/// later one may be counted first: to count puts in one slot, use put, fence, signal_add.
void put_signal(const ChannelPod& channel, int peer, uint64_t dst_offset, const void* src, size_t bytes, uint32_t id,
                uint32_t delta = 1);
// These functions put to an offset of adopted memory (SymmetricHeap::adopt).
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

/// Adds `delta` to signal `id` of `peer`, with release order: direct stores that this thread made before are visible on
/// `peer` after the wait_ge that this add satisfies. Puts are not covered: call fence(channel, peer) between put and
/// signal_add, or use put_signal.
void signal_add(const ChannelPod& channel, int peer, uint32_t id, uint32_t delta = 1);
/// Stores the new total of a slot with release order; only for the single writer of the slot.
void signal_post(const ChannelPod& channel, int peer, uint32_t id, uint64_t total);

/// Returns true if the slot of `sender` is >= value (rolling compare), with acquire order. Does not block. Its partners
/// are signal_add and signal_post.
[[nodiscard]] bool test_ge(const ChannelPod& channel, int sender, uint32_t id, uint64_t value);
/// Waits until test_ge holds, with acquire order. Returns ok; after timeout or aborted nothing may be read.
[[nodiscard]] Errc wait_ge(const ChannelPod& channel, int sender, uint32_t id, uint64_t value);
/// Waits until the high half of a word of this rank's heap, written by put_word, equals `epoch`, with acquire order.
/// `low` takes the low half.
[[nodiscard]] Errc wait_word(const ChannelPod& channel, uint64_t offset, uint32_t epoch, uint32_t* low);
/// Waits until int64(word - value) >= 0 for a word of this rank's heap, with acquire order.
[[nodiscard]] Errc wait_word_ge(const ChannelPod& channel, uint64_t offset, uint64_t value);
/// Returns what this rank has consumed of the slot so far; consume() adds to it. When no call is under way, slot and
/// ticket are equal everywhere.
uint64_t ticket(const ChannelPod& channel, int sender, uint32_t id);
void consume(const ChannelPod& channel, int sender, uint32_t id, uint64_t delta);

// ---- inbox: one call of each per epoch and peer; all ranks advance together ----

/// Returns the number of the epoch that runs now, from 1.
uint64_t inbox_epoch(const InboxPod& inbox);
/// Returns the offset at which this epoch's buffer begins in every heap.
uint64_t inbox_offset(const InboxPod& inbox);
/// Waits until `peer` has given credit for what I sent there `buffers` epochs ago, or before, with acquire order. After
/// ok I may write into this epoch's buffer of `peer`. Its partner is inbox_release.
[[nodiscard]] Errc inbox_wait_credit(const ChannelPod& channel, const InboxPod& inbox, int peer);
/// Does a put to offset `where` in this epoch's buffer of `peer`, a fence and one data signal. Call inbox_wait_credit
/// before. Data may be written in other ways too: then signal_add(data_id) follows, after a fence if puts were used.
void inbox_put(const ChannelPod& channel, const InboxPod& inbox, int peer, uint64_t where, const void* src,
               size_t bytes);
/// Records that I have sent to `peer` in this epoch and expect its credit. Call it after the last inbox_wait_credit of
/// that peer.
void inbox_sent(const ChannelPod& channel, const InboxPod& inbox, int peer);
/// Waits until `adds` data signals of `sender` have arrived in this epoch, with acquire order. All adds of one epoch
/// come before those of the next.
[[nodiscard]] Errc inbox_wait_data(const ChannelPod& channel, const InboxPod& inbox, int sender, uint64_t adds = 1);
/// Consumes the `adds` signals of `sender` and gives credit, with release order. Call it after my agents have read what
/// `sender` sent, for each rank that sent in this epoch and for no other.
void inbox_release(const ChannelPod& channel, const InboxPod& inbox, int sender, uint64_t adds = 1);
/// Begins the next epoch. One agent calls it after this rank has done all of the above.
void inbox_advance(const InboxPod& inbox);

// ---- local counters ----

/// Adds to a counter with release order among the agents of this rank.
void counter_add(const ChannelPod& channel, const CountersPod& counters, uint32_t index, uint64_t delta = 1);
/// Adds to a counter, with release and acquire order. Returns the new total: the agent that reaches the last one sees
/// what all others did before.
uint64_t counter_arrive(const ChannelPod& channel, const CountersPod& counters, uint32_t index, uint64_t delta = 1);
/// Waits until int64(counter - value) >= 0, with acquire order. Its TimeoutRecord names the counter.
[[nodiscard]] Errc counter_wait_ge(const ChannelPod& channel, const CountersPod& counters, uint32_t index,
                                   uint64_t value);

/// Reads from a peer's heap, and blocks until the bytes are in `dst`. An emulated link slows it down.
[[nodiscard]] Errc get(const ChannelPod& channel, int peer, uint64_t src_offset, void* dst, size_t bytes);
[[nodiscard]] Errc get(const ChannelPod& channel, const RegionPod& region, int peer, uint64_t src_offset, void* dst,
                       size_t bytes);

/// Orders this agent's earlier puts to `peer` before its later signals to it.
void fence(const ChannelPod& channel, int peer);
/// Returns when the sources of my puts may be reused, also if it fails: then the rest of them is dropped.
[[nodiscard]] Errc flush(const ChannelPod& channel);
/// Returns when everything that I issued is visible at every peer.
[[nodiscard]] Errc quiet(const ChannelPod& channel);
/// Waits for all ranks of the team, by their slots, with release and acquire order from all to all.
[[nodiscard]] Errc barrier(const ChannelPod& channel);

#pragma GCC visibility pop

}  // namespace overlace
