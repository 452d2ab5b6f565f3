// Waits of the kernel's own pipelines, with an end.
#pragma once

#include "src/device/ptx/mbarrier.cuh"
#include "src/device/ptx/shared.cuh"

namespace overlace::gemm_core {

namespace ptx = device::ptx;

/// Word of GemmParams::error.
inline constexpr uint32_t kPipelineStuck = 1;
inline constexpr uint32_t kPollsPerLook = 16;

/// How long one thread waits. After the first failure, its own or another's, it waits no more: every loop then runs to
/// its end with whatever the memory holds, the kernel ends, and the error word tells.
struct Deadline {
  uint32_t* error;
  uint64_t timeout_ns;
  bool is_over = false;
};

template <class Ready>
__device__ __forceinline__ void wait_until(Ready ready, Deadline& deadline) {
  if (deadline.is_over) return;
  uint64_t begin = 0;
  for (uint32_t polls = 1; !ready(); ++polls) {
    if (polls % kPollsPerLook != 0) continue;
    const uint64_t now = ptx::global_ns();
    if (begin == 0) begin = now;
    const bool is_late = now - begin > deadline.timeout_ns;
    if (is_late) ptx::store_relaxed_sys(deadline.error, kPipelineStuck);
    if (is_late || ptx::load_relaxed_sys(deadline.error) != 0) {
      deadline.is_over = true;
      return;
    }
  }
}

__device__ __forceinline__ void wait_barrier(uint32_t barrier, uint32_t parity, Deadline& deadline) {
  wait_until([=] { return ptx::mbarrier_try_wait(barrier, parity); }, deadline);
}
/// Until a word of shared memory is at least `count`, with a pause between looks.
template <uint32_t kPauseNs = 0>
__device__ __forceinline__ void wait_count(uint32_t word, uint32_t count, Deadline& deadline) {
  wait_until(
      [=] {
        if (ptx::load_acquire_cta(word) >= count) return true;
        if constexpr (kPauseNs > 0) __nanosleep(kPauseNs);
        return false;
      },
      deadline);
}

/// Position in a ring of kSlots: the slot, and the parity of the phase in which it is filled.
template <int kSlots>
struct Ring {
  uint32_t slot = 0, parity = 0;
  __device__ __forceinline__ void advance() {
    if (++slot == kSlots) {
      slot = 0;
      parity ^= 1;
    }
  }
  __device__ __forceinline__ void advance(uint32_t count) {
    const uint32_t to = slot + count;
    slot = to % kSlots;
    parity ^= to / kSlots % 2;
  }
};

}  // namespace overlace::gemm_core
