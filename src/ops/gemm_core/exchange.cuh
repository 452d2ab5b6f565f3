// What calls of all fused operators share: an inbox of two buffers that peers fill, and how a call ends on the device.
// Nothing is reset by the host, no rank waits for all others.
#pragma once

#include "overlace/device/counter.cuh"
#include "overlace/device/inbox.cuh"
#include "src/ops/gemm_core/params.cuh"
#include "src/ops/gemm_core/tickets.cuh"

namespace overlace::ops::gemm_core {

/// Words of a kernel's counters: warps of this call that are done, numbers drawn of items, or of places where items are
/// dealt, and of parts that are pushed.
enum class Count : uint32_t { arrivals, items, parts };
inline constexpr uint32_t kCounts = 3;

struct ExchangeParams {
  static constexpr bool kHasCredit = true;
  ChannelPod channel;
  InboxPod inbox;        // two buffers
  CountersPod counters;  // words by Count, all 0 between calls
  uint32_t arrivals_per_call;
  const uint4* items;  // the list, in device memory
};

__device__ __forceinline__ uint64_t* counter_of(const ExchangeParams& x, Count which) {
  return device::counter_word(x.counters, static_cast<uint32_t>(which));
}
__device__ __forceinline__ Drawn tickets_of(const ExchangeParams& x, int32_t items) {
  return {reinterpret_cast<uint32_t*>(counter_of(x, Count::items)), x.items, items};
}

__device__ __forceinline__ DrawnPlaces places_of(const ExchangeParams& x) {
  return {reinterpret_cast<uint32_t*>(counter_of(x, Count::items))};
}

/// The maps of this call's buffer are [this].
__device__ __forceinline__ uint32_t buffer_of_call(const ExchangeParams& x) {
  return static_cast<uint32_t>((device::inbox_epoch(x.inbox) - 1) % 2);
}

/// All lanes of the warp of the last CTA to arrive.
__device__ __forceinline__ void open_next_call(const ExchangeParams& x, uint32_t lane) {
  __syncwarp();
  if (lane == 0) *counter_of(x, Count::arrivals) = 0;
  if (lane == 0) device::inbox_advance(x.inbox);
  __syncwarp();
}

/// All lanes of the warp of the last CTA to arrive: gives credit for this call's buffer, opens the next epoch, and
/// waits until its buffer is free everywhere: peers gave that credit when they were done with the call before this one,
/// which all have ended whose data this call has waited for. `code`: how the call went up to here.
__device__ __forceinline__ void end_call(const ExchangeParams& x, uint32_t lane, Errc code) {
  const TeamPod& team = x.channel.team;
  const auto rank = static_cast<uint32_t>(team.rank), size = static_cast<uint32_t>(team.size);
  const bool has_peer = lane < size && lane != rank;
  const int peer = static_cast<int>(lane);
  if (has_peer) {
    device::inbox_sent(x.channel, x.inbox, peer);
    device::inbox_release(x.channel, x.inbox, peer, 0);
  }
  open_next_call(x, lane);
  if (has_peer && code == Errc::ok) code = device::inbox_wait_credit(x.channel, x.inbox, peer);
}

/// All lanes of one warp, whose part of the call is over: its loads from the inbox, or what it sends. The operator's
/// `consume_signals` moves on the tickets of the signals that the call has waited for.
template <class Params>
__device__ __forceinline__ void arrive(const Params& p) {
  const uint32_t lane = threadIdx.x % 32;
  uint32_t is_last = 0;
  if (lane == 0)
    is_last = device::counter_arrive(p.counters, static_cast<uint32_t>(Count::arrivals)) == p.arrivals_per_call;
  if (__shfl_sync(~0u, is_last, 0) == 0) return;
  const Errc code = consume_signals(p, lane);
  if constexpr (Params::kHasCredit) {
    end_call(p, lane, code);
  } else {
    open_next_call(p, lane);
  }
}

}  // namespace overlace::ops::gemm_core
