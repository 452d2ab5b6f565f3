// The only spin loop of device code. Every wait ends with data, at its deadline, or by an abort.
#pragma once

#include "overlace/device/detail/memory.cuh"
#include "overlace/handle_pod.h"

namespace overlace::device {

/// The waiter and what it waits for, for the record of a wait that fails.
struct WaitSite {
  WaitKind kind = WaitKind::signal;
  uint32_t peer = 0;  // team rank
  uint32_t id = 0;
  uint64_t expected = 0;
  uint32_t call = 0;
  uint64_t extra = 0;
};

/// Number of polls between two looks at the clock.
inline constexpr uint32_t kPollsPerLook = 256;
/// Time in ns between two looks at the abort word. That word lies in host memory, and looks are serialised: one look by
/// each of 512 waiting warps takes 0.35 ms. With a shorter time ranks would delay each other by as much, call after
/// call.
inline constexpr uint64_t kAbortLookNs = 2000000;

/// Returns true if the runtime was aborted.
__device__ __forceinline__ bool is_aborted(const TeamPod& team) { return ptx::load_relaxed_sys(team.abort_word) != 0; }

/// Ends a wait at its deadline. The first waiter of this rank that calls it writes the record and gets timeout, all
/// others get aborted, and the runtime is aborted. Nothing traps.
__device__ __forceinline__ Errc time_out(const TeamPod& team, const WaitSite& site, uint64_t seen, uint64_t waited_ns,
                                         uint64_t since_change_ns) {
  if (!ptx::claim_gpu(team.claim)) return Errc::aborted;
  volatile TimeoutRecord* record = team.record;
  record->rank = static_cast<uint32_t>(team.rank);
  record->peer = site.peer;
  record->team = team.team_id;
  record->id = site.id;
  record->block = blockIdx.x;
  record->call = site.call;
  record->kind = site.kind;
  record->expected = site.expected;
  record->seen = seen;
  record->waited_ns = waited_ns;
  record->last_change_ns = since_change_ns;
  record->extra = site.extra;
  ptx::store_release_sys(&team.record->magic, TimeoutRecord::kMagic);
  ptx::store_release_sys(team.abort_word, 1u);
  return Errc::timeout;
}

/// Polls until `ready(seen)` returns true. `ready` does the load (an acquire, unless the calling function's name says
/// relaxed) and stores the value that it saw in `seen`. After timeout or aborted nothing may be read.
template <class Ready>
__device__ __forceinline__ Errc poll_until(const TeamPod& team, const WaitSite& site, Ready ready) {
  uint64_t seen = 0;
  if (ready(seen)) return Errc::ok;
  const uint64_t begin = ptx::global_ns();
  uint64_t last = seen, last_change = begin, last_look = begin;
  for (uint32_t polls = 1;; ++polls) {
    if (ready(seen)) return Errc::ok;
    if (polls % kPollsPerLook != 0) continue;
    const uint64_t now = ptx::global_ns();
    if (now - last_look > kAbortLookNs) {
      if (is_aborted(team)) return Errc::aborted;
      last_look = ptx::global_ns();
    }
    if (seen != last) {
      last = seen;
      last_change = now;
    }
    if (now - begin > team.timeout_ns) return time_out(team, site, seen, now - begin, now - last_change);
  }
}

}  // namespace overlace::device
