// Random numbers as a function of seed, stream and counter: the same whoever draws them, in whatever order.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>
#include <utility>

namespace overlace::gnn {

/// What is drawn; part of the key, so that no two kinds share numbers.
enum class Stream : uint64_t { community = 1, weight, edge, feature, centre, split };

/// A bijection of 64 bits whose output bits each depend on all input bits (two multiplications, three shifts).
constexpr uint64_t mixed(uint64_t x) {
  x = (x ^ (x >> 32)) * 0xD6E8FEB86659FD93ull;
  x = (x ^ (x >> 32)) * 0xD6E8FEB86659FD93ull;
  return x ^ (x >> 32);
}

class Draws {
 public:
  Draws(uint64_t seed, Stream stream)
      : key_(mixed(mixed(seed + 0x9E3779B97F4A7C15ull) ^ static_cast<uint64_t>(stream))) {}
  uint64_t bits(uint64_t counter) const { return mixed(mixed(counter * 0x9E3779B97F4A7C15ull + key_) ^ key_); }
  /// In [0, 1), 53 bits.
  double uniform(uint64_t counter) const { return static_cast<double>(bits(counter) >> 11) * 0x1p-53; }
  /// In [0, n), n > 0.
  uint64_t below(uint64_t counter, uint64_t n) const { return scaled(bits(counter), n); }
  static uint64_t scaled(uint64_t word, uint64_t n) {
    __extension__ using Wide = unsigned __int128;
    return static_cast<uint64_t>((Wide{word} * n) >> 64);
  }
  /// Two independent ones of N(0, 1), of one word: 32 bits each for radius and angle.
  std::pair<float, float> normals(uint64_t counter) const {
    const uint64_t word = bits(counter);
    const float u = (static_cast<float>(word >> 40) + 0.5f) * 0x1p-24f;
    const float angle = static_cast<float>((word >> 8) & 0xFFFFFF) * (0x1p-24f * 2 * std::numbers::pi_v<float>);
    const float radius = std::sqrt(-2 * std::log(u));
    return {radius * std::cos(angle), radius * std::sin(angle)};
  }

 private:
  uint64_t key_;
};

}  // namespace overlace::gnn
