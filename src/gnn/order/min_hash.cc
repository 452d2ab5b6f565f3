#include "src/gnn/order/min_hash.h"

#include <algorithm>
#include <numeric>
#include <tuple>
#include <utility>

#include "src/gnn/sample/random.h"

namespace overlace::gnn {
namespace {

/// Rank of each batch of a range in a random permutation.
std::vector<uint32_t> permutation(BatchRange range, uint64_t key) {
  std::vector<uint32_t> batches(static_cast<size_t>(range.size())), rank(batches.size());
  std::iota(batches.begin(), batches.end(), 0u);
  for (size_t i = batches.size(); i > 1; --i) std::swap(batches[i - 1], batches[random_below(random_word(key, i), i)]);
  for (size_t i = 0; i < batches.size(); ++i) rank[batches[i]] = static_cast<uint32_t>(i);
  return rank;
}

}  // namespace

std::vector<uint32_t> hash_order(const InputTrace& uses, BatchRange range, std::vector<uint32_t> rows, uint64_t seed) {
  struct Key {
    uint32_t first = kNeverUsed, second = kNeverUsed, vertex = 0;
    auto tie() const { return std::tie(first, second, vertex); }
  };
  const std::vector<uint32_t> h1 = permutation(range, random_word(seed, 0)),
                              h2 = permutation(range, random_word(seed, 1));
  constexpr uint32_t kNotWanted = 0xffffffffu;
  std::vector<uint32_t> key_of(static_cast<size_t>(uses.num_vertices()), kNotWanted);
  std::vector<Key> keys(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    key_of[rows[i]] = static_cast<uint32_t>(i);
    keys[i].vertex = rows[i];
  }
  for (int64_t b = range.begin; b < range.end; ++b) {
    const auto time = static_cast<size_t>(b - range.begin);
    for (const uint32_t v : uses.inputs(b)) {
      if (key_of[v] == kNotWanted) continue;
      Key& key = keys[key_of[v]];
      key.first = std::min(key.first, h1[time]);
      key.second = std::min(key.second, h2[time]);
    }
  }
  std::sort(keys.begin(), keys.end(), [](const Key& a, const Key& b) { return a.tie() < b.tie(); });
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = keys[i].vertex;
  return rows;
}

}  // namespace overlace::gnn
