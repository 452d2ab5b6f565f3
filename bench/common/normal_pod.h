// Normal values that host, device and bench/driver/protocol.py make alike from a seed and a position.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define OVERLACE_BENCH_BOTH __host__ __device__
#else
#define OVERLACE_BENCH_BOTH
#endif

namespace overlace::bench {

/// Element (row, col) of the matrix `stream` of `seed`: normal(0, 1) times `scale`, rounded to the tensor's dtype. The
/// value depends on nothing else, so that a rank can make any block of a peer's operand. `first_row`, `first_col`:
/// position of the view; `is_transposed`: the view's rows are the matrix's columns.
struct Normal {
  uint64_t seed = 0;
  uint64_t stream = 0;
  double scale = 1;
  int64_t first_row = 0, first_col = 0;
  bool is_ramp = false;  // eight values in turn instead: what must not be timed
  bool is_transposed = false;
};

/// splitmix64's finaliser (Steele, Lea, Flood, OOPSLA 2014).
OVERLACE_BENCH_BOTH inline uint64_t mix(uint64_t x) {
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9ull;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

constexpr uint64_t kGoldenRatio = 0x9e3779b97f4a7c15ull;

struct Uniforms {
  float u, v;  // u in (0, 1), v in [0, 1)
};
OVERLACE_BENCH_BOTH inline Uniforms uniforms_at(const Normal& n, int64_t row, int64_t col) {
  const uint64_t key = mix(n.seed * kGoldenRatio + n.stream);
  const auto i = static_cast<uint64_t>(n.first_row + (n.is_transposed ? col : row));
  const auto j = static_cast<uint64_t>(n.first_col + (n.is_transposed ? row : col));
  const uint64_t h = mix(key ^ mix(i * kGoldenRatio + j));
  return {(static_cast<float>(static_cast<uint32_t>(h >> 40)) + 0.5f) * 0x1p-24f,
          static_cast<float>(static_cast<uint32_t>(h) >> 8) * 0x1p-24f};
}

OVERLACE_BENCH_BOTH inline float ramp_at(const Normal& n, int64_t row, int64_t col) {
  const auto step = static_cast<float>((n.first_row + row + n.first_col + col) % 8);
  return (step - 3.5f) * 0.25f * static_cast<float>(n.scale);
}

}  // namespace overlace::bench
