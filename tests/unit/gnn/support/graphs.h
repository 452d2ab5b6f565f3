// Small seeded graphs of the kind of section "Graphs" in docs/design/diskgnn.md, made in the test that needs them, and
// numbers of rows.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "src/gnn/graph.h"
#include "src/gnn/sample/random.h"

namespace overlace::gnn::test {

/// Numbers of rows below `num_rows`, drawn; the same for the same key.
inline std::vector<int64_t> drawn_rows(int64_t count, int64_t num_rows, uint64_t key = 3) {
  std::vector<int64_t> ids(static_cast<size_t>(count));
  for (size_t i = 0; i < ids.size(); ++i)
    ids[i] = static_cast<int64_t>(random_below(random_word(key, i), static_cast<uint64_t>(num_rows)));
  return ids;
}

struct TestGraph {
  std::vector<int64_t> indptr, indices;

  CscView view() const { return {indptr, std::span<const int64_t>(indices)}; }
  /// Sorted, as often as there are edges.
  std::vector<uint32_t> neighbours(uint32_t v) const {
    std::vector<uint32_t> out(indices.begin() + indptr[v], indices.begin() + indptr[v + 1]);
    std::sort(out.begin(), out.end());
    return out;
  }
  const std::vector<int32_t>& narrow() {
    narrow_.assign(indices.begin(), indices.end());
    return narrow_;
  }

 private:
  std::vector<int32_t> narrow_;
};

/// Communities and degrees by a power law: both ends of an edge are drawn by weight, the second inside the community of
/// the first with probability 0.6; both directions are stored, loops are left out.
struct SkewedGraph {
  int64_t num_vertices = 1 << 16;
  int64_t edges_per_vertex = 16;
  uint64_t seed = 1;
  double alpha = 2.0;
  int64_t communities = 256;
};

inline double uniform_at(uint64_t key, uint64_t i) {
  return (static_cast<double>(random_word(key, i) >> 11) + 0.5) * 0x1p-53;
}

inline size_t draw_by_weight(const std::vector<double>& sums, size_t first, size_t last, double u) {
  const double before = first == 0 ? 0 : sums[first - 1];
  const double wanted = before + u * (sums[last - 1] - before);
  const auto begin = sums.begin();
  const auto found = std::upper_bound(begin + static_cast<int64_t>(first), begin + static_cast<int64_t>(last), wanted);
  return std::min(static_cast<size_t>(found - begin), last - 1);
}

inline TestGraph skewed_graph(const SkewedGraph& g) {
  const auto n = static_cast<size_t>(g.num_vertices), k = static_cast<size_t>(g.communities);
  const auto stream = [&](uint64_t i) { return random_word(g.seed, i); };
  std::vector<double> sizes(k);
  for (size_t c = 0; c < k; ++c) sizes[c] = (c == 0 ? 0 : sizes[c - 1]) + 1 / std::sqrt(static_cast<double>(c) + 1);
  std::vector<uint32_t> community(n), by_community(n);
  for (size_t v = 0; v < n; ++v)
    community[v] = static_cast<uint32_t>(draw_by_weight(sizes, 0, k, uniform_at(stream(0), v)));
  std::iota(by_community.begin(), by_community.end(), 0u);
  std::stable_sort(by_community.begin(), by_community.end(),
                   [&](uint32_t a, uint32_t b) { return community[a] < community[b]; });
  // Positions in the sequence by community stand for vertices, so that a community is a range of the sums.
  std::vector<size_t> begin(k + 1, n);
  std::vector<double> sums(n);
  for (size_t i = n; i-- > 0;) begin[community[by_community[i]]] = i;
  for (size_t c = k; c-- > 0;) begin[c] = std::min(begin[c], begin[c + 1]);
  const double largest = 4 * std::sqrt(static_cast<double>(n));
  for (size_t i = 0; i < n; ++i) {
    const double u = uniform_at(stream(1), by_community[i]);
    sums[i] = (i == 0 ? 0 : sums[i - 1]) + std::min(std::pow(1 - u, -1 / (g.alpha - 1)), largest);
  }
  std::vector<std::pair<uint32_t, uint32_t>> edges;  // (destination, source)
  const auto count = static_cast<uint64_t>(g.num_vertices * g.edges_per_vertex);
  edges.reserve(2 * count);
  for (uint64_t e = 0; e < count; ++e) {
    const uint32_t a = by_community[draw_by_weight(sums, 0, n, uniform_at(stream(2), e))];
    const bool inside = uniform_at(stream(3), e) < 0.6;
    const size_t first = inside ? begin[community[a]] : 0, last = inside ? begin[community[a] + 1] : n;
    const uint32_t b = by_community[draw_by_weight(sums, first, last, uniform_at(stream(4), e))];
    if (a == b) continue;
    edges.push_back({a, b});
    edges.push_back({b, a});
  }
  TestGraph graph;
  graph.indptr.assign(n + 1, 0);
  for (const auto& [to, from] : edges) ++graph.indptr[to + 1];
  std::partial_sum(graph.indptr.begin(), graph.indptr.end(), graph.indptr.begin());
  graph.indices.resize(edges.size());
  std::vector<int64_t> next(graph.indptr.begin(), graph.indptr.end() - 1);
  for (const auto& [to, from] : edges) graph.indices[static_cast<size_t>(next[to]++)] = from;
  return graph;
}

}  // namespace overlace::gnn::test
