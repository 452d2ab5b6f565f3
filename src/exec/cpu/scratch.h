// Workspaces of a channel's programs on CPU ranks. Its calls are made one after the other by one thread, and nothing of
// a workspace outlives its call: all programs share one block, which grows.
#pragma once

#include <algorithm>
#include <cstddef>
#include <list>
#include <new>

namespace overlace::exec {

class Scratch {
 public:
  Scratch() = default;
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() {
    for (const Block& block : blocks_) free(block);
  }

  /// At least `bytes`, 64-byte aligned, until give_back; null where there is no memory. A larger block than all before
  /// is twice as large as the last one, so that those which older programs keep are no larger together.
  void* take(size_t bytes) {
    if (blocks_.empty() || blocks_.back().bytes < bytes) {
      const size_t wanted = blocks_.empty() ? bytes : std::max(bytes, 2 * blocks_.back().bytes);
      Block block = make(wanted);
      if (block.memory == nullptr && wanted != bytes) block = make(bytes);
      if (block.memory == nullptr) return nullptr;
      if (!blocks_.empty() && blocks_.back().users == 0) {
        free(blocks_.back());
        blocks_.pop_back();
      }
      blocks_.push_back(block);
    }
    ++blocks_.back().users;
    return blocks_.back().memory;
  }

  /// The last block stays for the next program.
  void give_back(void* memory) {
    const auto found =
        std::find_if(blocks_.begin(), blocks_.end(), [&](const Block& block) { return block.memory == memory; });
    if (--found->users != 0 || std::next(found) == blocks_.end()) return;
    free(*found);
    blocks_.erase(found);
  }

  /// The bytes of all blocks.
  size_t bytes() const {
    size_t sum = 0;
    for (const Block& block : blocks_) sum += block.bytes;
    return sum;
  }

 private:
  struct Block {
    void* memory = nullptr;
    size_t bytes = 0, users = 0;
  };
  static constexpr std::align_val_t kAlign{64};
  static Block make(size_t bytes) { return {::operator new(bytes, kAlign, std::nothrow), bytes, 0}; }
  static void free(const Block& block) { ::operator delete(block.memory, kAlign); }

  std::list<Block> blocks_;  // rising in size
};

}  // namespace overlace::exec
