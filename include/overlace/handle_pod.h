// Plain data that device code and CPU agents take by value, trivially copyable. The words "I" and "my" stand for the
// rank that has the value.
#pragma once

#include <cstdint>
#include <type_traits>

#include "overlace/errc_pod.h"

#if defined(__CUDACC__)
#define OVERLACE_HOST_DEVICE __host__ __device__
#else
#define OVERLACE_HOST_DEVICE
#endif

namespace overlace {

/// The kind of a wait, for the record of one that fails.
enum class WaitKind : uint32_t { none, signal, word, stream, barrier, engine, counter };

/// The record of a failed wait, written once, by the first waiter that reached its deadline. Times are in ns.
struct TimeoutRecord {
  static constexpr uint32_t kMagic = 0x0B1ACE01;
  uint32_t magic = 0, rank = 0, peer = 0, team = 0, id = 0, block = 0, call = 0;
  WaitKind kind = WaitKind::none;
  uint64_t expected = 0, seen = 0, waited_ns = 0, last_change_ns = 0, extra = 0;
};

/// Number of ranks whose addresses a pod holds itself; a larger team has a table.
inline constexpr int kPodPeers = 8;

/// A team as one rank sees it. The slot of (id, sender) at rank p is the 64-bit word at heap[p] + sig_off + (id *
/// sig_stride + sender) * sig_pitch. Ranks are ranks of the team, and sig_stride is the size of the world, as teams
/// have disjoint ids. `sent` and `ticket` are private arrays indexed id * sig_stride + rank: what I have added at a
/// peer, and what I have consumed.
struct TeamPod {
  int32_t rank, size;
  char* heap[kPodPeers];   // bases of the first 8 peers (my mapping of their heap)
  char* const* heap_more;  // table of all `size` bases where size > 8, else null
  uint64_t sig_off;
  uint32_t sig_pitch, sig_stride, num_ids, caps, team_id;
  uint64_t* sent;
  uint64_t* ticket;
  uint32_t* abort_word;   // pinned host memory or shared memory: non-zero once aborted
  TimeoutRecord* record;  // memory of the same kind
  uint64_t timeout_ns;
  void* agent;      // cpu backend: the CpuAgent of this rank; null on devices
  uint32_t* claim;  // devices: word in device memory that the first waiter at its deadline swaps; it writes the record
};
static_assert(std::is_trivially_copyable_v<TeamPod> && sizeof(TeamPod) <= 512);

/// A channel: its team and its own range of ids. barrier_id is reserved for barrier().
struct ChannelPod {
  TeamPod team;
  uint32_t channel_id, barrier_id;
};
static_assert(std::is_trivially_copyable_v<ChannelPod>);

/// Adopted memory of `bytes` bytes on each rank: base addresses by team rank, null if reach is net.
struct RegionPod {
  char* base[kPodPeers];
  char* const* base_more;  // table of all bases of a team of more than kPodPeers ranks, else null
  uint64_t bytes;
};
static_assert(std::is_trivially_copyable_v<RegionPod>);

/// An inbox: buffers that peers write in turn. Epoch e, from 1, uses buffer (e - 1) % buffers. `cells` are private
/// words: first the number of epochs that are over, then by team rank the epoch in which I last sent there, then by
/// team rank the epoch for which I last gave credit.
struct InboxPod {
  uint64_t offset, pitch;  // offset of the first buffer in every heap; bytes from a buffer to the next
  uint64_t* cells;
  uint32_t buffers, ranks, data_id, credit_id;

  OVERLACE_HOST_DEVICE constexpr uint64_t* sent_cell(int peer) const { return cells + 1 + peer; }
  OVERLACE_HOST_DEVICE constexpr uint64_t* credited_cell(int sender) const {
    return cells + 1 + ranks + static_cast<uint32_t>(sender);
  }
  OVERLACE_HOST_DEVICE constexpr uint64_t buffer_offset(uint64_t epoch) const {
    return offset + (epoch - 1) % buffers * pitch;
  }
};
static_assert(std::is_trivially_copyable_v<InboxPod>);

/// Returns the number of cells of an inbox.
OVERLACE_HOST_DEVICE constexpr uint64_t inbox_cells(uint32_t ranks) { return 1 + 2 * uint64_t{ranks}; }

/// Returns the value that a credit slot must reach before the inbox's buffer of `epoch` may be written. `owed` is its
/// ticket: the credits due for all that I sent there, last in epoch `sent` (0: never). Credits count epochs, so the
/// last ones may be missing.
OVERLACE_HOST_DEVICE constexpr uint64_t credit_needed(uint64_t owed, uint64_t epoch, uint64_t sent, uint32_t buffers) {
  const int64_t missing = static_cast<int64_t>(sent + buffers - epoch);  // credits of the last epochs up to `sent`
  return missing > 0 ? owed - static_cast<uint64_t>(missing) : owed;
}

inline constexpr uint32_t kCounterPitch = 32;  // bytes from a counter to the next: a sector

/// Counters: 64-bit words of one rank, kCounterPitch bytes apart, which only its own agents count up. `number` names
/// them in messages.
struct CountersPod {
  char* words;
  uint32_t count, number;
};
static_assert(std::is_trivially_copyable_v<CountersPod>);

}  // namespace overlace
