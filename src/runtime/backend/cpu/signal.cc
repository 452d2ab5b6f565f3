// CPU twins of signals, puts and waits (overlace/signal.h). Slots are touched by acquire and release operations only,
// never by standalone fences.
#include "overlace/signal.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "overlace/error.h"
#include "src/base/status.h"
#include "src/runtime/backend/cpu/agent.h"
#include "src/runtime/backend/cpu/net.h"
#include "src/runtime/backend/cpu/observer.h"
#include "src/runtime/backend/cpu/wire.h"
#include "src/runtime/wait.h"

namespace overlace {
namespace {

using runtime::agent_of;
using runtime::Arrival;
using runtime::CpuAgent;
using runtime::heap_of;
using runtime::Observer;
using runtime::own_heap;
using runtime::Payload;
using runtime::Step;
using runtime::WaitSite;

size_t cell(const TeamPod& team, int rank, uint32_t id) {
  if (rank < 0 || rank >= team.size || id >= team.num_ids || team.agent == nullptr)
    throw InvalidArgument(Errc::invalid_argument,
                          base::format("signal: rank {} and id {}, wanted a rank below {} and an id below {} of a "
                                       "channel of CPU ranks",
                                       rank, id, team.size, team.num_ids));
  return size_t{id} * team.sig_stride + static_cast<size_t>(rank);
}

int world_rank(const TeamPod& team, int peer) {
  if (const char* base = heap_of(team, peer)) return runtime::control_block(const_cast<char*>(base)).rank;
  return static_cast<const CpuAgent*>(team.agent)->names->world_rank(team.team_id, static_cast<uint32_t>(peer));
}

/// The peer's heap, or what is reserved for it where it is on another host.
char* place_of(const TeamPod& team, int peer) {
  if (char* base = heap_of(team, peer)) return base;
  return static_cast<const CpuAgent*>(team.agent)->bases[static_cast<size_t>(world_rank(team, peer))];
}

/// The counter that `sender` advances in the heap of `owner`.
uint64_t* slot(const TeamPod& team, int owner, uint32_t id, int sender) {
  return reinterpret_cast<uint64_t*>(place_of(team, owner) + team.sig_off + cell(team, sender, id) * team.sig_pitch);
}

Step step_of(const ChannelPod& channel, int peer, const Payload& payload, const Arrival& arrival) {
  const bool has_payload = payload.bytes() != 0;
  Step step{.rank = agent_of(channel).rank, .peer = world_rank(channel.team, peer), .id = arrival.id};
  switch (arrival.kind) {
    case Arrival::Kind::none:
      step.kind = Step::Kind::put;
      break;
    case Arrival::Kind::add:
      step.kind = has_payload ? Step::Kind::put_signal : Step::Kind::add;
      break;
    case Arrival::Kind::post:
      step.kind = Step::Kind::post;
      break;
    case Arrival::Kind::word:
    case Arrival::Kind::word_release:
      step.kind = Step::Kind::word;
      break;
  }
  return step;
}

/// Through the wire if there is one, else at once.
void send(const ChannelPod& channel, int peer, const Payload& payload, const Arrival& arrival) {
  CpuAgent& agent = agent_of(channel);
  if (Observer* observer = agent.observer.load(std::memory_order_acquire))
    if (!observer->before(step_of(channel, peer, payload, arrival))) return;
  char* base = heap_of(channel.team, peer);
  if (agent.wire || agent.net) {
    const int target = world_rank(channel.team, peer);
    if (agent.wire && agent.wire->carries(target)) return agent.wire->send(target, payload, arrival);
    if (agent.net && agent.net->carries(target)) return agent.net->send(target, payload, 0, payload.bytes(), arrival);
  }
  payload.copy(0, payload.bytes());
  if (arrival.kind != Arrival::Kind::none) apply(arrival, base);
}

Payload contiguous(char* dst, const void* src, size_t bytes) {
  return {dst, static_cast<const char*>(src), bytes, bytes, bytes, bytes == 0 ? size_t{0} : size_t{1}};
}

/// Adopted memory has an end that nothing else guards.
char* region_place(const RegionPod& region, int peer, uint64_t offset, uint64_t bytes) {
  if (offset > region.bytes || bytes > region.bytes - offset)
    throw InvalidArgument(Errc::invalid_argument, base::format("adopted memory: bytes {} to {}, wanted at most {}",
                                                               offset, offset + bytes, region.bytes));
  char* const base = region.base_more == nullptr ? region.base[peer] : region.base_more[peer];
  return base == nullptr ? nullptr : base + offset;
}

Arrival arrival_of(const ChannelPod& channel, int peer, uint32_t id, Arrival::Kind kind, uint64_t value) {
  return {kind, slot(channel.team, peer, id, channel.team.rank), value, id % runtime::kBells, id};
}

/// Bookkeeping of what I added; threads of one rank may share a slot.
void count_sent(const ChannelPod& channel, int peer, uint32_t id, uint64_t delta) {
  std::atomic_ref(channel.team.sent[cell(channel.team, peer, id)]).fetch_add(delta, std::memory_order_relaxed);
}

uint64_t* own_word(const ChannelPod& channel, uint64_t offset) {
  if (offset % sizeof(uint64_t) != 0)
    throw InvalidArgument(Errc::invalid_argument, base::format("word: offset is {}, wanted a multiple of 8", offset));
  return reinterpret_cast<uint64_t*>(own_heap(channel.team) + offset);
}

void send_word(const ChannelPod& channel, int peer, uint64_t dst_offset, uint64_t word, Arrival::Kind kind) {
  if (dst_offset % sizeof(uint64_t) != 0)
    throw InvalidArgument(Errc::invalid_argument,
                          base::format("put_word: offset is {}, wanted a multiple of 8", dst_offset));
  send(channel, peer, {},
       {kind, reinterpret_cast<uint64_t*>(place_of(channel.team, peer) + dst_offset), word, runtime::kAnyBell, 0});
}

Errc fetch(const ChannelPod& channel, int peer, const char* src, void* dst, size_t bytes) {
  CpuAgent& agent = agent_of(channel);
  if (agent.wire) {
    const int64_t due = agent.wire->reserve_get(world_rank(channel.team, peer), bytes);
    if (const Errc code = runtime::sleep_until(channel, due); code != Errc::ok) return code;
  }
  if (bytes != 0) std::memcpy(dst, src, bytes);
  return Errc::ok;
}

/// Loads do not reach other hosts, and messages only push.
void check_reach(const void* address, const ChannelPod& channel, int peer, const char* call) {
  if (address == nullptr)
    throw Unsupported(Errc::not_supported,
                      base::format("{}: rank {} (of the world) is on another host, wanted one whose memory is mapped",
                                   call, world_rank(channel.team, peer)));
}

/// After an abort nothing is in flight because it was dropped: that is no success.
Errc drain(const ChannelPod& channel, bool (*is_drained)(const runtime::Wire::Issuer&)) {
  CpuAgent& agent = agent_of(channel);
  if (agent.wire && !runtime::is_aborted(channel)) {
    const runtime::Wire::Issuer& mine = agent.wire->issuer();
    const Errc code = runtime::poll_until(channel, {.kind = WaitKind::stream}, [&] { return is_drained(mine); });
    if (code != Errc::ok) return code;
  }
  if (!runtime::is_aborted(channel)) return Errc::ok;
  if (agent.wire) agent.wire->drop_all();
  return Errc::aborted;
}

}  // namespace

void put(const ChannelPod& channel, int peer, uint64_t dst_offset, const void* src, size_t bytes) {
  send(channel, peer, contiguous(place_of(channel.team, peer) + dst_offset, src, bytes), {});
}

void put_2d(const ChannelPod& channel, int peer, uint64_t dst_offset, size_t dst_pitch, const void* src,
            size_t src_pitch, size_t row_bytes, size_t rows) {
  send(
      channel, peer,
      {place_of(channel.team, peer) + dst_offset, static_cast<const char*>(src), dst_pitch, src_pitch, row_bytes, rows},
      {});
}

void put_signal(const ChannelPod& channel, int peer, uint64_t dst_offset, const void* src, size_t bytes, uint32_t id,
                uint32_t delta) {
  count_sent(channel, peer, id, delta);
  send(channel, peer, contiguous(place_of(channel.team, peer) + dst_offset, src, bytes),
       arrival_of(channel, peer, id, Arrival::Kind::add, delta));
}

void* peer_ptr(const RegionPod& region, int peer, uint64_t offset) { return region_place(region, peer, offset, 0); }

void put(const ChannelPod& channel, const RegionPod& region, int peer, uint64_t dst_offset, const void* src,
         size_t bytes) {
  char* const dst = region_place(region, peer, dst_offset, bytes);
  check_reach(dst, channel, peer, "put to adopted memory");
  send(channel, peer, contiguous(dst, src, bytes), {});
}

void put_2d(const ChannelPod& channel, const RegionPod& region, int peer, uint64_t dst_offset, size_t dst_pitch,
            const void* src, size_t src_pitch, size_t row_bytes, size_t rows) {
  if (row_bytes == 0 || rows == 0) return;
  char* const dst = region_place(region, peer, dst_offset, (rows - 1) * dst_pitch + row_bytes);
  check_reach(dst, channel, peer, "put to adopted memory");
  send(channel, peer, {dst, static_cast<const char*>(src), dst_pitch, src_pitch, row_bytes, rows}, {});
}

void put_signal(const ChannelPod& channel, const RegionPod& region, int peer, uint64_t dst_offset, const void* src,
                size_t bytes, uint32_t id, uint32_t delta) {
  const Payload payload = contiguous(region_place(region, peer, dst_offset, bytes), src, bytes);
  check_reach(payload.dst, channel, peer, "put to adopted memory");
  count_sent(channel, peer, id, delta);
  send(channel, peer, payload, arrival_of(channel, peer, id, Arrival::Kind::add, delta));
}

void put_word(const ChannelPod& channel, int peer, uint64_t dst_offset, uint64_t word) {
  send_word(channel, peer, dst_offset, word, Arrival::Kind::word);
}

void put_word_release(const ChannelPod& channel, int peer, uint64_t dst_offset, uint64_t word) {
  send_word(channel, peer, dst_offset, word, Arrival::Kind::word_release);
}

void signal_add(const ChannelPod& channel, int peer, uint32_t id, uint32_t delta) {
  count_sent(channel, peer, id, delta);
  send(channel, peer, {}, arrival_of(channel, peer, id, Arrival::Kind::add, delta));
}

void signal_post(const ChannelPod& channel, int peer, uint32_t id, uint64_t total) {
  std::atomic_ref(channel.team.sent[cell(channel.team, peer, id)]).store(total, std::memory_order_relaxed);
  send(channel, peer, {}, arrival_of(channel, peer, id, Arrival::Kind::post, total));
}

bool test_ge(const ChannelPod& channel, int sender, uint32_t id, uint64_t value) {
  const std::atomic_ref counter(*slot(channel.team, channel.team.rank, id, sender));
  return static_cast<int64_t>(counter.load(std::memory_order_acquire) - value) >= 0;
}

Errc wait_ge(const ChannelPod& channel, int sender, uint32_t id, uint64_t value) {
  const WaitSite site{.kind = WaitKind::signal,
                      .peer = static_cast<uint32_t>(sender),
                      .id = id,
                      .expected = value,
                      .word = slot(channel.team, channel.team.rank, id, sender)};
  return runtime::poll_until(channel, site, [&] { return test_ge(channel, sender, id, value); });
}

Errc wait_word(const ChannelPod& channel, uint64_t offset, uint32_t epoch, uint32_t* low) {
  uint64_t* word = own_word(channel, offset);
  const WaitSite site{.kind = WaitKind::word,
                      .peer = static_cast<uint32_t>(channel.team.rank),
                      .expected = uint64_t{epoch} << 32,
                      .word = word,
                      .extra = offset};
  return runtime::poll_until(channel, site, [&] {
    const uint64_t seen = std::atomic_ref(*word).load(std::memory_order_acquire);
    if (seen >> 32 != epoch) return false;
    *low = static_cast<uint32_t>(seen);
    return true;
  });
}

Errc wait_word_ge(const ChannelPod& channel, uint64_t offset, uint64_t value) {
  uint64_t* word = own_word(channel, offset);
  const WaitSite site{.kind = WaitKind::word,
                      .peer = static_cast<uint32_t>(channel.team.rank),
                      .expected = value,
                      .word = word,
                      .extra = offset};
  return runtime::poll_until(channel, site, [&] {
    return static_cast<int64_t>(std::atomic_ref(*word).load(std::memory_order_acquire) - value) >= 0;
  });
}

uint64_t ticket(const ChannelPod& channel, int sender, uint32_t id) {
  return std::atomic_ref(channel.team.ticket[cell(channel.team, sender, id)]).load(std::memory_order_relaxed);
}

void consume(const ChannelPod& channel, int sender, uint32_t id, uint64_t delta) {
  std::atomic_ref(channel.team.ticket[cell(channel.team, sender, id)]).fetch_add(delta, std::memory_order_relaxed);
}

void fence(const ChannelPod& channel, int peer) {
  CpuAgent& agent = agent_of(channel);
  if (Observer* observer = agent.observer.load(std::memory_order_acquire)) {
    const Step step{.kind = Step::Kind::fence, .rank = agent.rank, .peer = world_rank(channel.team, peer), .id = 0};
    if (!observer->before(step)) return;
  }
  if (agent.wire) return agent.wire->fence(world_rank(channel.team, peer));
  agent.fence_word.fetch_add(1, std::memory_order_acq_rel);
}

Errc flush(const ChannelPod& channel) { return drain(channel, &runtime::Wire::is_flushed); }

Errc quiet(const ChannelPod& channel) {
  if (const Errc code = drain(channel, &runtime::Wire::is_quiet); code != Errc::ok) return code;
  return runtime::wait_for_net(channel);
}

Errc get(const ChannelPod& channel, int peer, uint64_t src_offset, void* dst, size_t bytes) {
  check_reach(heap_of(channel.team, peer), channel, peer, "get");
  return fetch(channel, peer, heap_of(channel.team, peer) + src_offset, dst, bytes);
}

Errc get(const ChannelPod& channel, const RegionPod& region, int peer, uint64_t src_offset, void* dst, size_t bytes) {
  const char* const src = region_place(region, peer, src_offset, bytes);
  check_reach(src, channel, peer, "get from adopted memory");
  return fetch(channel, peer, src, dst, bytes);
}

Errc barrier(const ChannelPod& channel) {
  const TeamPod& team = channel.team;
  for (int i = 1; i < team.size; ++i) {
    const int peer = (team.rank + i) % team.size;
    fence(channel, peer);
    signal_add(channel, peer, channel.barrier_id);
  }
  for (int i = 1; i < team.size; ++i) {
    const int peer = (team.rank + i) % team.size;
    const uint64_t value = ticket(channel, peer, channel.barrier_id) + 1;
    const WaitSite site{.kind = WaitKind::barrier,
                        .peer = static_cast<uint32_t>(peer),
                        .id = channel.barrier_id,
                        .expected = value,
                        .word = slot(team, team.rank, channel.barrier_id, peer)};
    const Errc code =
        runtime::poll_until(channel, site, [&] { return test_ge(channel, peer, channel.barrier_id, value); });
    if (code != Errc::ok) return code;
    consume(channel, peer, channel.barrier_id, 1);
  }
  return Errc::ok;
}

}  // namespace overlace
