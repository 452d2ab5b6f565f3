// Local ids of the vertices of one batch, in order of first appearance.
#pragma once

#include <cstdint>
#include <vector>

namespace overlace::gnn {

/// Open addressing with linear probing, at most half full; kept from batch to batch, so that it seldom grows.
class LocalIds {
 public:
  LocalIds() : table_(size_t{1} << 12) {}

  void clear() {
    table_.assign(table_.size(), Entry{});
    size_ = 0;
  }
  uint32_t size() const { return size_; }

  /// Brings the place of a vertex into the cache.
  void prefetch(uint32_t vertex) const { __builtin_prefetch(&table_[place(vertex)], 1); }

  /// The id of a vertex, the next free one if it has none yet.
  uint32_t insert(uint32_t vertex) {
    if (2 * (size_t{size_} + 1) > table_.size()) grow();
    size_t i = place(vertex);
    while (table_[i].local != kNone && table_[i].vertex != vertex) i = (i + 1) & (table_.size() - 1);
    if (table_[i].local == kNone) table_[i] = {vertex, size_++};
    return table_[i].local;
  }

 private:
  static constexpr uint32_t kNone = 0xffffffffu;
  struct Entry {
    uint32_t vertex = 0;
    uint32_t local = kNone;
  };

  size_t place(uint32_t vertex) const {
    return static_cast<size_t>((vertex * 0x9e3779b97f4a7c15u) >> 32) & (table_.size() - 1);
  }
  void grow() {
    std::vector<Entry> old(2 * table_.size());
    old.swap(table_);
    for (const Entry& entry : old) {
      if (entry.local == kNone) continue;
      size_t i = place(entry.vertex);
      while (table_[i].local != kNone) i = (i + 1) & (table_.size() - 1);
      table_[i] = entry;
    }
  }

  std::vector<Entry> table_;
  uint32_t size_ = 0;
};

}  // namespace overlace::gnn
