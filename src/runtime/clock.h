// One clock for all waits: CLOCK_MONOTONIC, equal for all processes of a host.
#pragma once

#include <chrono>
#include <cstdint>

namespace overlace::runtime {

inline int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace overlace::runtime
