// CPU twins of inboxes and local counters (overlace/signal.h).
#include <atomic>

#include "overlace/error.h"
#include "overlace/signal.h"
#include "src/runtime/backend/cpu/agent.h"
#include "src/runtime/wait.h"

namespace overlace {
namespace {

uint64_t load(uint64_t* cell) { return std::atomic_ref(*cell).load(std::memory_order_relaxed); }
void store(uint64_t* cell, uint64_t value) { std::atomic_ref(*cell).store(value, std::memory_order_relaxed); }

uint64_t* counter_word(const CountersPod& counters, uint32_t index) {
  if (index >= counters.count)
    throw InvalidArgument(Errc::invalid_argument,
                          base::format("counter: index is {}, wanted less than {}", index, counters.count));
  return reinterpret_cast<uint64_t*>(counters.words + size_t{index} * kCounterPitch);
}

void check_rank(const InboxPod& inbox, int rank) {
  if (rank < 0 || static_cast<uint32_t>(rank) >= inbox.ranks)
    throw InvalidArgument(Errc::invalid_argument,
                          base::format("inbox: rank is {}, wanted 0 to {}", rank, inbox.ranks - 1));
}

}  // namespace

uint64_t inbox_epoch(const InboxPod& inbox) { return load(inbox.cells) + 1; }

uint64_t inbox_offset(const InboxPod& inbox) { return inbox.buffer_offset(inbox_epoch(inbox)); }

Errc inbox_wait_credit(const ChannelPod& channel, const InboxPod& inbox, int peer) {
  check_rank(inbox, peer);
  const uint64_t owed = ticket(channel, peer, inbox.credit_id);
  const uint64_t sent = load(inbox.sent_cell(peer));
  return wait_ge(channel, peer, inbox.credit_id, credit_needed(owed, inbox_epoch(inbox), sent, inbox.buffers));
}

void inbox_put(const ChannelPod& channel, const InboxPod& inbox, int peer, uint64_t where, const void* src,
               size_t bytes) {
  if (where > inbox.pitch || bytes > inbox.pitch - where)
    throw InvalidArgument(Errc::invalid_argument, base::format("inbox_put: bytes {} to {}, wanted at most {}", where,
                                                               where + bytes, inbox.pitch));
  put(channel, peer, inbox_offset(inbox) + where, src, bytes);
  fence(channel, peer);
  signal_add(channel, peer, inbox.data_id);
}

void inbox_sent(const ChannelPod& channel, const InboxPod& inbox, int peer) {
  check_rank(inbox, peer);
  const uint64_t epoch = inbox_epoch(inbox);
  uint64_t* const cell = inbox.sent_cell(peer);
  consume(channel, peer, inbox.credit_id, epoch - load(cell));
  store(cell, epoch);
}

Errc inbox_wait_data(const ChannelPod& channel, const InboxPod& inbox, int sender, uint64_t adds) {
  return wait_ge(channel, sender, inbox.data_id, ticket(channel, sender, inbox.data_id) + adds);
}

void inbox_release(const ChannelPod& channel, const InboxPod& inbox, int sender, uint64_t adds) {
  check_rank(inbox, sender);
  const uint64_t epoch = inbox_epoch(inbox);
  uint64_t* const cell = inbox.credited_cell(sender);
  consume(channel, sender, inbox.data_id, adds);
  signal_add(channel, sender, inbox.credit_id, static_cast<uint32_t>(epoch - load(cell)));
  store(cell, epoch);
}

void inbox_advance(const InboxPod& inbox) { store(inbox.cells, load(inbox.cells) + 1); }

void counter_add(const ChannelPod& channel, const CountersPod& counters, uint32_t index, uint64_t delta) {
  (void)counter_arrive(channel, counters, index, delta);
}

uint64_t counter_arrive(const ChannelPod& channel, const CountersPod& counters, uint32_t index, uint64_t delta) {
  const std::atomic_ref word(*counter_word(counters, index));
  // seq_cst: the look at the waiters that follows cannot pass it.
  const uint64_t total = word.fetch_add(delta, std::memory_order_seq_cst) + delta;
  runtime::notify(channel);
  return total;
}

Errc counter_wait_ge(const ChannelPod& channel, const CountersPod& counters, uint32_t index, uint64_t value) {
  uint64_t* const word = counter_word(counters, index);
  const runtime::WaitSite site{.kind = WaitKind::counter,
                               .peer = static_cast<uint32_t>(channel.team.rank),
                               .id = index,
                               .expected = value,
                               .word = word,
                               .extra = counters.number};
  return runtime::poll_until(channel, site, [&] {
    return static_cast<int64_t>(std::atomic_ref(*word).load(std::memory_order_acquire) - value) >= 0;
  });
}

}  // namespace overlace
