// First fit by address over a range of numbers: bytes of a heap, signal ids. Bookkeeping only; deterministic.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

namespace overlace::runtime {

class Allocator {
 public:
  Allocator() = default;
  /// Hands out [begin, end) in multiples of `unit`.
  Allocator(uint64_t begin, uint64_t end, uint64_t unit);

  /// Lowest place at `least` or behind it for `size`, rounded up to units, at a multiple of `align`; nothing if there
  /// is none.
  std::optional<uint64_t> take(uint64_t size, uint64_t align, uint64_t least = 0);
  /// False if no living block starts at `offset`; else its size as rounded.
  std::optional<uint64_t> give_back(uint64_t offset);
  /// From now on up to `end`, which does not fall.
  void grow(uint64_t end);
  uint64_t capacity() const { return end_ - begin_; }
  uint64_t in_use() const { return in_use_; }
  uint64_t largest_free() const;

 private:
  void add_hole(uint64_t offset, uint64_t size);

  uint64_t begin_ = 0, end_ = 0, unit_ = 1, in_use_ = 0;
  std::map<uint64_t, uint64_t> free_;    // offset -> size, never adjacent
  std::map<uint64_t, uint64_t> living_;  // offset -> size
};

}  // namespace overlace::runtime
