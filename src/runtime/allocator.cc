#include "src/runtime/allocator.h"

#include <algorithm>
#include <limits>

#include "src/spec/layout_pod.h"

namespace overlace::runtime {

Allocator::Allocator(uint64_t begin, uint64_t end, uint64_t unit) : begin_(begin), end_(end), unit_(unit) {
  if (end > begin) free_[begin] = end - begin;
}

std::optional<uint64_t> Allocator::take(uint64_t size, uint64_t align, uint64_t least) {
  if (size > capacity()) return std::nullopt;
  size = align_up(std::max<uint64_t>(size, 1), unit_);
  align = std::max(align, unit_);
  for (const auto& [offset, bytes] : free_) {
    const uint64_t begin = align_up(std::max(offset, least), align);
    const uint64_t skipped = begin - offset;
    if (skipped > bytes || bytes - skipped < size) continue;
    const uint64_t rest = bytes - skipped - size;
    const uint64_t hole = offset;  // the reference dies with the node
    free_.erase(hole);
    if (skipped != 0) free_[hole] = skipped;
    if (rest != 0) free_[begin + size] = rest;
    living_[begin] = size;
    in_use_ += size;
    return begin;
  }
  return std::nullopt;
}

std::optional<uint64_t> Allocator::give_back(uint64_t offset) {
  const auto block = living_.find(offset);
  if (block == living_.end()) return std::nullopt;
  const uint64_t size = block->second;
  living_.erase(block);
  in_use_ -= size;
  add_hole(offset, size);
  return size;
}

void Allocator::grow(uint64_t end) {
  if (end <= end_) return;
  add_hole(end_, end - end_);
  end_ = end;
}

void Allocator::add_hole(uint64_t offset, uint64_t size) {
  auto hole = free_.emplace(offset, size).first;
  if (const auto next = std::next(hole); next != free_.end() && offset + size == next->first) {
    hole->second += next->second;
    free_.erase(next);
  }
  if (hole != free_.begin()) {
    if (const auto before = std::prev(hole); before->first + before->second == offset) {
      before->second += hole->second;
      free_.erase(hole);
    }
  }
}

uint64_t Allocator::largest_free() const {
  uint64_t largest = 0;
  for (const auto& [offset, size] : free_) largest = std::max(largest, size);
  return largest;
}

}  // namespace overlace::runtime
