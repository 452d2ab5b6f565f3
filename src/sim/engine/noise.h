// Randomness without state: a number depends on its keys only, whoever asks in whatever order.
#pragma once

#include <cmath>
#include <cstdint>

namespace overlace::sim {

/// 64 well-mixed bits (the finalizer of splitmix64, over each key in turn).
constexpr uint64_t random_bits(uint64_t seed, uint64_t rank, uint64_t task, uint64_t draw) {
  uint64_t x = seed;
  for (const uint64_t key : {rank, task, draw}) {
    x += 0x9e3779b97f4a7c15u + key * 0xd1342543de82ef95u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    x ^= x >> 31;
  }
  return x;
}

/// In (0, 1).
constexpr double uniform(uint64_t bits) { return (static_cast<double>(bits >> 11) + 0.5) * 0x1p-53; }

/// Mean 0, deviation 1 (Box and Muller).
inline double normal(uint64_t seed, uint64_t rank, uint64_t task, uint64_t draw) {
  const double u = uniform(random_bits(seed, rank, task, 2 * draw));
  const double v = uniform(random_bits(seed, rank, task, 2 * draw + 1));
  return std::sqrt(-2 * std::log(u)) * std::cos(2 * 3.14159265358979323846 * v);
}

}  // namespace overlace::sim
