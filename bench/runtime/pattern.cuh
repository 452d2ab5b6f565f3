// Values of the bench, recomputable anywhere.
#pragma once

#include <cstdint>

namespace overlace::bench {

/// Two bf16 of magnitude 0.5 to 2 with mixed signs and mantissas; doubling is exact.
__device__ __forceinline__ uint32_t value_of(uint64_t i, uint32_t from) {
  uint32_t x = static_cast<uint32_t>(i) * 2654435761u + from * 40503u;
  x ^= x >> 15;
  x *= 2246822519u;
  return (x & 0x80ff80ffu) | 0x3f003f00u;
}
__device__ __forceinline__ uint32_t doubled(uint32_t pair) { return pair + 0x00800080u; }  // exponents + 1

}  // namespace overlace::bench
