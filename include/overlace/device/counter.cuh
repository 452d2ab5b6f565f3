// Local counters: words of this GPU that its own blocks count up (tile triggers) and that blocks or streams wait for.
// The functions for CPU ranks are in overlace/signal.h. One thread calls, after a CTA barrier behind the accesses that
// it releases.
#pragma once

#include "overlace/device/poll.cuh"

namespace overlace::device {

/// Returns the address of counter `index`.
__device__ __forceinline__ uint64_t* counter_word(const CountersPod& counters, uint32_t index) {
  return reinterpret_cast<uint64_t*>(counters.words + static_cast<uint64_t>(index) * kCounterPitch);
}

/// Adds with release order at device scope, for kernels of this GPU that wait.
__device__ __forceinline__ void counter_add(const CountersPod& counters, uint32_t index, uint64_t delta = 1) {
  asm volatile("red.release.gpu.global.add.u64 [%0], %1;" ::"l"(counter_word(counters, index)), "l"(delta) : "memory");
}
/// Adds with release order at system scope, for streams that wait (stream_wait) and the copy engines behind them.
__device__ __forceinline__ void counter_add_system(const CountersPod& counters, uint32_t index, uint64_t delta = 1) {
  ptx::add_release_sys(counter_word(counters, index), delta);
}
/// Adds with release and acquire order at device scope. Returns the new total: the thread that reaches the last one
/// sees what all others did before.
__device__ __forceinline__ uint64_t counter_arrive(const CountersPod& counters, uint32_t index, uint64_t delta = 1) {
  uint64_t before;
  asm volatile("atom.acq_rel.gpu.global.add.u64 %0, [%1], %2;"
               : "=l"(before)
               : "l"(counter_word(counters, index)), "l"(delta)
               : "memory");
  return before + delta;
}
/// Waits until int64(counter - value) >= 0, with acquire order at device scope.
[[nodiscard]] __device__ __forceinline__ Errc counter_wait_ge(const TeamPod& team, const CountersPod& counters,
                                                              uint32_t index, uint64_t value) {
  const uint64_t* word = counter_word(counters, index);
  WaitSite site{WaitKind::counter, static_cast<uint32_t>(team.rank), index, value};
  site.extra = counters.number;
  return poll_until(team, site, [word, value](uint64_t& seen) {
    asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(seen) : "l"(word) : "memory");
    return static_cast<int64_t>(seen - value) >= 0;
  });
}

}  // namespace overlace::device
