// Weights without a checkpoint: counter-based, so that any rank makes any part, the same on hosts and devices.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define OVERLACE_HD __host__ __device__
#else
#define OVERLACE_HD
#endif

namespace overlace::model {

/// Finaliser of splitmix64: a bijection whose output bits all depend on all input bits.
OVERLACE_HD constexpr uint64_t mix64(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

inline constexpr uint64_t kHashStep = 0x9E3779B97F4A7C15u;

/// Key of one tensor of a seed.
OVERLACE_HD constexpr uint64_t tensor_key(uint64_t seed, uint64_t tensor) {
  return mix64(mix64(seed + kHashStep) + (tensor + 1) * kHashStep);
}

/// Key of one row of a tensor.
OVERLACE_HD constexpr uint64_t row_key(uint64_t key, int64_t row) {
  return mix64(key + (static_cast<uint64_t>(row) + 1) * kHashStep);
}

OVERLACE_HD constexpr int32_t sum_of_16_bit_fields(uint64_t word) {
  return static_cast<int32_t>((word & 0xFFFFu) + ((word >> 16) & 0xFFFFu) + ((word >> 32) & 0xFFFFu) + (word >> 48));
}

/// Mean 0, variance 1, at most 6 in magnitude: twelve uniform 16-bit integers summed exactly, so no rounding mode, FMA
/// or library function can make two machines differ.
OVERLACE_HD constexpr float normal_at(uint64_t row, int64_t col) {
  const uint64_t first = row + 3 * static_cast<uint64_t>(col) * kHashStep;
  const int32_t sum = sum_of_16_bit_fields(mix64(first + kHashStep)) +
                      sum_of_16_bit_fields(mix64(first + 2 * kHashStep)) +
                      sum_of_16_bit_fields(mix64(first + 3 * kHashStep));
  return static_cast<float>(sum - 6 * 65535) * (1.0f / 65536.0f);
}

/// Part of a made matrix: element (i, j) is offset + scale * normal at (first_row + i, first_col + j) of its tensor.
struct SeededMatrix {
  uint64_t key = 0;
  float scale = 1;
  float offset = 0;  // with an offset, scale is 1/8: then the sum is exact and contraction cannot change it
  int64_t first_row = 0, first_col = 0;
};

/// `row` is row_key(m.key, m.first_row + i).
OVERLACE_HD constexpr float seeded_value(const SeededMatrix& m, uint64_t row, int64_t j) {
  const float scaled = m.scale * normal_at(row, m.first_col + j);
  return m.offset == 0 ? scaled : m.offset + scaled;
}

}  // namespace overlace::model
