// Sleeping on a word of shared memory, and how many cores there are to spin on.
#pragma once

#include <cstdint>

namespace overlace::runtime {

/// Returns when woken, when *word != expected, after `bound_ns`, or for no reason.
void futex_wait(uint32_t* word, uint32_t expected, int64_t bound_ns);
void futex_wake(uint32_t* word);

/// Affinity, limited by the cgroup's quota; at least 1.
int usable_cores();

inline void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace overlace::runtime
