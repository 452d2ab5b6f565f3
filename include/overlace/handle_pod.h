// What device code and CPU agents get by value: plain data, trivially copyable.
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

enum class WaitKind : uint32_t { none, signal, word, stream, barrier, engine, counter };

/// What a failed wait leaves behind. Written once, by the first waiter that reached its deadline.
struct TimeoutRecord {
  static constexpr uint32_t kMagic = 0x0B1ACE01;
  uint32_t magic = 0, rank = 0, peer = 0, team = 0, id = 0, block = 0, call = 0;
  WaitKind kind = WaitKind::none;
  uint64_t expected = 0, seen = 0, waited_ns = 0, last_change_ns = 0, extra = 0;
};

inline constexpr int kPodPeers = 8;

/// Slot of (id, sender) at rank p: heap[p] + sig_off + (id * sig_stride + sender) * sig_pitch, a 64-bit word; ranks are
/// ranks of the team, sig_stride is the world size (teams have disjoint ids). sent and ticket are private arrays
/// indexed id * sig_stride + rank: what I have added at a peer, what I have consumed.
struct TeamPod {
  int32_t rank, size;
  char* heap[kPodPeers];   // bases of the first 8 peers (my mapping of their heap)
  char* const* heap_more;  // table of all `size` bases where size > 8, else null
  uint64_t sig_off;
  uint32_t sig_pitch, sig_stride, num_ids, caps, team_id;
  uint64_t* sent;
  uint64_t* ticket;
  uint32_t* abort_word;   // pinned host memory or shared memory: non-zero once aborted
  TimeoutRecord* record;  // idem
  uint64_t timeout_ns;
  void* agent;      // cpu backend: the CpuAgent of this rank; null on devices
  uint32_t* claim;  // devices: word in device memory that the first waiter at its deadline swaps; it writes the record
};
static_assert(std::is_trivially_copyable_v<TeamPod> && sizeof(TeamPod) <= 512);

/// A team and the channel's own id range; barrier_id is reserved for barrier().
struct ChannelPod {
  TeamPod team;
  uint32_t channel_id, barrier_id;
};
static_assert(std::is_trivially_copyable_v<ChannelPod>);

/// Adopted memory: bases by team rank, of `bytes` each; null where reach is net.
struct RegionPod {
  char* base[kPodPeers];
  char* const* base_more;  // table of all bases of a team of more than kPodPeers ranks, else null
  uint64_t bytes;
};
static_assert(std::is_trivially_copyable_v<RegionPod>);

/// Buffers that peers write one after the other: epoch e, from 1, uses buffer (e - 1) % buffers. `cells` are private:
/// epochs that are over, then by team rank the epoch in which I last sent there, then by team rank that for which I
/// last gave credit.
struct InboxPod {
  uint64_t offset, pitch;  // of the first buffer in every heap; from a buffer to the next
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

OVERLACE_HOST_DEVICE constexpr uint64_t inbox_cells(uint32_t ranks) { return 1 + 2 * uint64_t{ranks}; }

/// What a credit slot must reach before the inbox's buffer of `epoch` may be written. `owed`: its ticket, the credits
/// due for all I sent there, the last in epoch `sent` (0: never). Credits count epochs, so the last ones may be
/// missing.
OVERLACE_HOST_DEVICE constexpr uint64_t credit_needed(uint64_t owed, uint64_t epoch, uint64_t sent, uint32_t buffers) {
  const int64_t missing = static_cast<int64_t>(sent + buffers - epoch);  // of the last epochs up to `sent`
  return missing > 0 ? owed - static_cast<uint64_t>(missing) : owed;
}

inline constexpr uint32_t kCounterPitch = 32;  // a sector

/// 64-bit words of one rank, kCounterPitch apart, counted up by its own agents only; `number` names them in messages.
struct CountersPod {
  char* words;
  uint32_t count, number;
};
static_assert(std::is_trivially_copyable_v<CountersPod>);

}  // namespace overlace
