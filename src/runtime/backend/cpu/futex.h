// Sleeping on a word of shared memory, and how many cores there are to spin on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace overlace::runtime {

/// Returns when woken, when *word != expected, after `bound_ns`, or for no reason.
void futex_wait(uint32_t* word, uint32_t expected, int64_t bound_ns);
void futex_wake(uint32_t* word);

/// CPUs that the calling thread may run on, as a bit mask.
std::vector<std::byte> own_cpus();
/// How many CPUs are in any of the masks, limited by the cgroup's quota; at least 1.
int usable_cores(std::span<const std::vector<std::byte>> masks);

inline void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace overlace::runtime
