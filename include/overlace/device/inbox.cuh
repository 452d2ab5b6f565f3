// Inboxes in device code: buffers that peers fill in turn; the CPU twins are in include/overlace/signal.h. Epochs and
// what is owed live in device memory, so a replayed graph goes on with its own.
//
// A call belongs to one thread unless it says otherwise. For a grid: every block may wait; inbox_sent, inbox_release
// and inbox_advance belong to the block that finishes last (counter_arrive).
#pragma once

#include "overlace/device/put.cuh"
#include "overlace/device/signal.cuh"

namespace overlace::device {

/// Number of the epoch that runs now, from 1.
__device__ __forceinline__ uint64_t inbox_epoch(const InboxPod& inbox) { return *inbox.cells + 1; }
/// Where its buffer begins in every heap.
__device__ __forceinline__ uint64_t inbox_offset(const InboxPod& inbox) {
  return inbox.buffer_offset(inbox_epoch(inbox));
}

/// Acquire. ok once `peer` has given credit for what I sent there `buffers` epochs ago, or before: I may write into
/// this epoch's buffer there, after a CTA barrier where other threads write. Partner of inbox_release.
[[nodiscard]] __device__ __forceinline__ Errc inbox_wait_credit(const ChannelPod& channel, const InboxPod& inbox,
                                                                int peer) {
  const uint64_t owed = ticket(channel, peer, inbox.credit_id);
  return wait_ge(channel, peer, inbox.credit_id,
                 credit_needed(owed, inbox_epoch(inbox), *inbox.sent_cell(peer), inbox.buffers));
}

/// All threads of a block: stores to `where` in this epoch's buffer of `peer`, then one data signal. Not before
/// inbox_wait_credit. Other ways of writing are fine: then signal_add(data_id) follows.
__device__ __forceinline__ void inbox_put(const ChannelPod& channel, const InboxPod& inbox, int peer, uint64_t where,
                                          const void* src, uint64_t bytes) {
  put_signal(channel, peer, inbox_offset(inbox) + where, src, bytes, inbox.data_id);
}

/// I have sent to `peer` in this epoch and expect its credit. After the last inbox_wait_credit of that peer.
__device__ __forceinline__ void inbox_sent(const ChannelPod& channel, const InboxPod& inbox, int peer) {
  const uint64_t epoch = inbox_epoch(inbox);
  uint64_t* const cell = inbox.sent_cell(peer);
  consume(channel, peer, inbox.credit_id, epoch - *cell);
  *cell = epoch;
}

/// Acquire. ok once `adds` data signals of `sender` have come in this epoch. All adds of one epoch come before those of
/// the next.
[[nodiscard]] __device__ __forceinline__ Errc inbox_wait_data(const ChannelPod& channel, const InboxPod& inbox,
                                                              int sender, uint64_t adds = 1) {
  return wait_ge(channel, sender, inbox.data_id, ticket(channel, sender, inbox.data_id) + adds);
}

/// Release; after a CTA barrier behind the last load. Consumes the `adds` signals of `sender` and gives credit. For
/// each rank that sent in this epoch, no other.
__device__ __forceinline__ void inbox_release(const ChannelPod& channel, const InboxPod& inbox, int sender,
                                              uint64_t adds = 1) {
  const uint64_t epoch = inbox_epoch(inbox);
  uint64_t* const cell = inbox.credited_cell(sender);
  consume(channel, sender, inbox.data_id, adds);
  signal_add(channel, sender, inbox.credit_id, static_cast<uint32_t>(epoch - *cell));
  *cell = epoch;
}

/// The next epoch, once this rank is done with all of the above; one thread.
__device__ __forceinline__ void inbox_advance(const InboxPod& inbox) { *inbox.cells += 1; }

}  // namespace overlace::device
