// Drawn numbers, the same ones from a seed on every machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <random>

namespace overlace::test {

class Dice {
 public:
  explicit Dice(uint64_t seed) : random_(seed) {}
  /// From least to most. Not std::uniform_int_distribution, which draws otherwise in each library.
  int64_t number(int64_t least, int64_t most) {
    return least + static_cast<int64_t>(random_() % static_cast<uint64_t>(most - least + 1));
  }
  bool one_in(int64_t n) { return number(1, n) == 1; }
  template <class List>
  auto of(const List& list) {
    return list[static_cast<size_t>(number(0, static_cast<int64_t>(std::size(list)) - 1))];
  }

 private:
  std::mt19937_64 random_;
};

}  // namespace overlace::test
