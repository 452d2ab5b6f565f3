#include "src/gnn/levels/slots.h"

#include <bit>

#include "src/base/status.h"
#include "src/gnn/levels/next_use.h"

namespace overlace::gnn {
namespace {

constexpr uint32_t kNoSlot = 0xffffffffu;

/// A set of small integers that knows its largest element: bits, over words that are not zero, and so on.
class LargestOf {
 public:
  void reset(size_t size) {
    levels_.clear();
    do {
      size = (size + 63) / 64;
      levels_.emplace_back(size);
    } while (size > 1);
  }
  void insert(size_t x) {
    for (auto& level : levels_) {
      const uint64_t before = level[x / 64];
      level[x / 64] |= uint64_t{1} << (x % 64);
      if (before != 0) return;
      x /= 64;
    }
  }
  void erase(size_t x) {
    for (auto& level : levels_) {
      level[x / 64] &= ~(uint64_t{1} << (x % 64));
      if (level[x / 64] != 0) return;
      x /= 64;
    }
  }
  /// Precondition: not empty.
  size_t largest() const {
    size_t x = 0;
    for (size_t i = levels_.size(); i-- > 0;) x = 64 * x + 63 - static_cast<size_t>(std::countl_zero(levels_[i][x]));
    return x;
  }

 private:
  std::vector<std::vector<uint64_t>> levels_;
};

/// Slots in doubly linked lists; each slot is in one list.
class SlotLists {
 public:
  void reset(size_t num_lists, size_t num_slots) {
    head_.assign(num_lists, kNoSlot);
    before_.assign(num_slots, kNoSlot);
    after_.assign(num_slots, kNoSlot);
  }
  uint32_t head(size_t list) const { return head_[list]; }
  uint32_t after(uint32_t slot) const { return after_[slot]; }
  uint32_t before(uint32_t slot) const { return before_[slot]; }
  void push(size_t list, uint32_t slot) {
    before_[slot] = kNoSlot;
    after_[slot] = head_[list];
    if (head_[list] != kNoSlot) before_[head_[list]] = slot;
    head_[list] = slot;
  }
  void remove(size_t list, uint32_t slot) {
    if (before_[slot] != kNoSlot)
      after_[before_[slot]] = after_[slot];
    else
      head_[list] = after_[slot];
    if (after_[slot] != kNoSlot) before_[after_[slot]] = before_[slot];
  }

 private:
  std::vector<uint32_t> head_, before_, after_;
};

class KeepAll final : public SlotPolicy {
 public:
  void begin(std::span<const uint32_t>, uint32_t) override {}
  void touch(uint32_t, uint32_t) override {}
  std::optional<uint32_t> offer(uint32_t) override { return std::nullopt; }
};

class Belady final : public SlotPolicy {
 public:
  void begin(std::span<const uint32_t> next, uint32_t end_time) override {
    never_ = end_time;
    lists_.reset(size_t{end_time} + 1, next.size());
    used_.reset(size_t{end_time} + 1);
    list_.resize(next.size());
    for (size_t s = next.size(); s-- > 0;) put(static_cast<uint32_t>(s), next[s]);
  }
  void touch(uint32_t slot, uint32_t next) override {
    take(slot);
    put(slot, next);
  }
  std::optional<uint32_t> offer(uint32_t next) override {
    if (list_.empty()) return std::nullopt;
    const size_t farthest = used_.largest();
    if (farthest <= list_of(next)) return std::nullopt;
    const uint32_t slot = lists_.head(farthest);
    touch(slot, next);
    return slot;
  }

 private:
  size_t list_of(uint32_t next) const { return next == kNeverUsed ? never_ : next; }
  void put(uint32_t slot, uint32_t next) {
    const size_t list = list_of(next);
    OVERLACE_ASSERT(list <= never_);
    list_[slot] = static_cast<uint32_t>(list);
    lists_.push(list, slot);
    used_.insert(list);
  }
  void take(uint32_t slot) {
    const size_t list = list_[slot];
    lists_.remove(list, slot);
    if (lists_.head(list) == kNoSlot) used_.erase(list);
  }

  uint32_t never_ = 0;          // the list of rows that are not used again
  SlotLists lists_;             // one per time
  LargestOf used_;              // lists with slots
  std::vector<uint32_t> list_;  // of each slot
};

class Lru final : public SlotPolicy {
 public:
  void begin(std::span<const uint32_t> next, uint32_t) override {
    // Slot 0, which has the row used most, counts as used last.
    lists_.reset(1, next.size());
    oldest_ = next.empty() ? kNoSlot : static_cast<uint32_t>(next.size() - 1);
    for (size_t s = next.size(); s-- > 0;) lists_.push(0, static_cast<uint32_t>(s));
  }
  void touch(uint32_t slot, uint32_t) override {
    if (lists_.head(0) == slot) return;
    if (slot == oldest_) oldest_ = lists_.before(slot);
    lists_.remove(0, slot);
    lists_.push(0, slot);
  }
  std::optional<uint32_t> offer(uint32_t next) override {
    if (oldest_ == kNoSlot) return std::nullopt;
    const uint32_t slot = oldest_;
    touch(slot, next);
    return slot;
  }

 private:
  SlotLists lists_;
  uint32_t oldest_ = kNoSlot;
};

}  // namespace

const char* name_of(CachePolicy policy) {
  switch (policy) {
    case CachePolicy::none:
      return "none";
    case CachePolicy::hottest:
      return "static";
    case CachePolicy::lru:
      return "lru";
    case CachePolicy::belady:
      return "belady";
  }
  return "?";
}

std::unique_ptr<SlotPolicy> make_slot_policy(CachePolicy policy) {
  if (policy == CachePolicy::belady) return std::make_unique<Belady>();
  if (policy == CachePolicy::lru) return std::make_unique<Lru>();
  return std::make_unique<KeepAll>();
}

}  // namespace overlace::gnn
