// Inboxes: buffers that peers fill in turn. The functions for CPU ranks are in overlace/signal.h. Epochs and pending
// credits live in device memory, so a replayed graph continues with its own.
//
// A call belongs to one thread unless its comment says otherwise. In a grid every block may wait; inbox_sent,
// inbox_release and inbox_advance belong to the block that finishes last (counter_arrive). The words "I" and "my" stand
// for the calling rank.
#pragma once

#include "overlace/device/put.cuh"
#include "overlace/device/signal.cuh"

namespace overlace::device {

/// Returns the number of the epoch that runs now, from 1.
__device__ __forceinline__ uint64_t inbox_epoch(const InboxPod& inbox) { return *inbox.cells + 1; }
/// Returns the offset at which this epoch's buffer begins in every heap.
__device__ __forceinline__ uint64_t inbox_offset(const InboxPod& inbox) {
  return inbox.buffer_offset(inbox_epoch(inbox));
}

/// Waits until `peer` has given credit for what I sent there `buffers` epochs ago, or before, with acquire order. After
/// ok I may write into this epoch's buffer of `peer`; other threads may after a CTA barrier. Its partner is
/// inbox_release.
[[nodiscard]] __device__ __forceinline__ Errc inbox_wait_credit(const ChannelPod& channel, const InboxPod& inbox,
                                                                int peer) {
  const uint64_t owed = ticket(channel, peer, inbox.credit_id);
  return wait_ge(channel, peer, inbox.credit_id,
                 credit_needed(owed, inbox_epoch(inbox), *inbox.sent_cell(peer), inbox.buffers));
}

/// Stores `bytes` bytes to offset `where` in this epoch's buffer of `peer`, then adds one data signal. All threads of a
/// block call it, after inbox_wait_credit. Data may be written in other ways too: then signal_add(data_id) follows.
__device__ __forceinline__ void inbox_put(const ChannelPod& channel, const InboxPod& inbox, int peer, uint64_t where,
                                          const void* src, uint64_t bytes) {
  put_signal(channel, peer, inbox_offset(inbox) + where, src, bytes, inbox.data_id);
}

/// Records that I have sent to `peer` in this epoch and expect its credit. Call it after the last inbox_wait_credit of
/// that peer.
__device__ __forceinline__ void inbox_sent(const ChannelPod& channel, const InboxPod& inbox, int peer) {
  const uint64_t epoch = inbox_epoch(inbox);
  uint64_t* const cell = inbox.sent_cell(peer);
  consume(channel, peer, inbox.credit_id, epoch - *cell);
  *cell = epoch;
}

/// Waits until `adds` data signals of `sender` have arrived in this epoch, with acquire order. All adds of one epoch
/// come before those of the next.
[[nodiscard]] __device__ __forceinline__ Errc inbox_wait_data(const ChannelPod& channel, const InboxPod& inbox,
                                                              int sender, uint64_t adds = 1) {
  return wait_ge(channel, sender, inbox.data_id, ticket(channel, sender, inbox.data_id) + adds);
}

/// Consumes the `adds` signals of `sender` and gives credit, with release order. Call it after a CTA barrier behind the
/// last load, for each rank that sent in this epoch and for no other.
__device__ __forceinline__ void inbox_release(const ChannelPod& channel, const InboxPod& inbox, int sender,
                                              uint64_t adds = 1) {
  const uint64_t epoch = inbox_epoch(inbox);
  uint64_t* const cell = inbox.credited_cell(sender);
  consume(channel, sender, inbox.data_id, adds);
  signal_add(channel, sender, inbox.credit_id, static_cast<uint32_t>(epoch - *cell));
  *cell = epoch;
}

/// Begins the next epoch, after this rank has done all of the above. One thread calls it.
__device__ __forceinline__ void inbox_advance(const InboxPod& inbox) { *inbox.cells += 1; }

}  // namespace overlace::device
