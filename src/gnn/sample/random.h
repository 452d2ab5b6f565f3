// Random numbers without state: a value depends on its keys and its number alone, whichever thread asks, in any order.
#pragma once

#include <cstdint>

namespace overlace::gnn {

/// Word `number` of the sequence of `key`: splitmix64 (Steele, Lea, Flood, OOPSLA 2014) as a function of its counter.
/// A word serves as the key of a sequence below it, too.
constexpr uint64_t random_word(uint64_t key, uint64_t number) {
  uint64_t x = key + (number + 1) * 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/// In [0, n): the upper half of word * n, whose bias is at most n / 2^64.
constexpr uint64_t random_below(uint64_t word, uint64_t n) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<uint64_t>((static_cast<Wide>(word) * n) >> 64);
}

}  // namespace overlace::gnn
