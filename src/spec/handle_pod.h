// What device code and CPU agents get by value: plain data, trivially copyable.
#pragma once

#include <cstdint>
#include <type_traits>

#include "overlace/errc_pod.h"

namespace overlace {

enum class WaitKind : uint32_t { none, signal, word, stream, barrier, engine };

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

}  // namespace overlace
