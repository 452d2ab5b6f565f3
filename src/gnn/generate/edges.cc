#include <algorithm>
#include <bit>
#include <cmath>
#include <memory>
#include <numeric>

#include "src/base/ceil_div_pod.h"
#include "src/gnn/generate/draws.h"
#include "src/gnn/generate/generate.h"

namespace overlace::gnn {
namespace {

constexpr int64_t kEdgesPerBlock = 1 << 16;
constexpr double kWeightUnit = 1 << 16;  // weights are integers, so that sums do not depend on their order

/// Vertices by community, drawn by weight: over all, or inside one community.
class WeightedVertices {
 public:
  explicit WeightedVertices(const GenerateOptions& options) {
    community_ = communities_of(options);
    const auto n = community_.size();
    begin_.assign(static_cast<size_t>(options.communities) + 1, 0);
    for (const int32_t c : community_) ++begin_[static_cast<size_t>(c) + 1];
    std::partial_sum(begin_.begin(), begin_.end(), begin_.begin());
    vertices_.resize(n);
    std::vector<uint32_t> next(begin_.begin(), begin_.end() - 1);
    for (size_t v = 0; v < n; ++v) vertices_[next[static_cast<size_t>(community_[v])]++] = static_cast<uint32_t>(v);
    const Draws draws(options.seed, Stream::weight);
    const double cap = options.weight_cap * std::sqrt(static_cast<double>(n));
    until_.resize(n + 1);
    for (size_t i = 0; i < n; ++i) {
      const double weight = std::pow(1 - draws.uniform(vertices_[i]), -1 / (options.alpha - 1));
      until_[i + 1] = until_[i] + static_cast<uint64_t>(std::min(weight, cap) * kWeightUnit);
    }
    // guide_[j]: where a search for the j-th of n equal parts of the sum begins.
    guide_.resize(n + 1);
    for (size_t j = 0, i = 0; j <= n; ++j) {
      const uint64_t part = part_begin(j);
      while (i + 1 < n && until_[i + 1] <= part) ++i;
      guide_[j] = static_cast<uint32_t>(i);
    }
  }

  int64_t anywhere(uint64_t word) const { return at(Draws::scaled(word, until_.back())); }
  int64_t beside(int64_t vertex, uint64_t word) const {
    const auto c = static_cast<size_t>(community_[static_cast<size_t>(vertex)]);
    const uint64_t first = until_[begin_[c]], last = until_[begin_[c + 1]];
    return at(first + Draws::scaled(word, last - first));
  }

 private:
  uint64_t part_begin(size_t j) const {
    __extension__ using Wide = unsigned __int128;
    return static_cast<uint64_t>(Wide{until_.back()} * j / (until_.size() - 1));
  }
  int64_t at(uint64_t sum) const {
    __extension__ using Wide = unsigned __int128;
    auto i = static_cast<size_t>(guide_[static_cast<size_t>(Wide{sum} * (until_.size() - 1) / until_.back())]);
    while (until_[i + 1] <= sum) ++i;
    return vertices_[i];
  }

  std::vector<int32_t> community_;
  std::vector<uint32_t> begin_, vertices_, guide_;  // begin_: of communities in vertices_
  std::vector<uint64_t> until_;                     // sums of weights, in the order of vertices_
};

EdgeBlocks blocks_of(int64_t num_edges, std::function<Edge(uint64_t)> edge) {
  return {base::ceil_div(num_edges, kEdgesPerBlock), [=](int64_t block, std::vector<Edge>* edges) {
            const int64_t first = block * kEdgesPerBlock, last = std::min(first + kEdgesPerBlock, num_edges);
            edges->clear();
            edges->reserve(static_cast<size_t>(last - first));
            for (int64_t e = first; e < last; ++e) edges->push_back(edge(static_cast<uint64_t>(e)));
            return base::Status();
          }};
}

/// Quadrants of the adjacency matrix with the probabilities of Graph500: .57 .19 .19 .05.
Edge rmat_edge(const Draws& draws, int levels, uint64_t number) {
  Edge edge;
  for (int level = 0; level < levels; ++level) {
    const double u = draws.uniform(number * 64 + static_cast<uint64_t>(level));
    edge.source = edge.source * 2 + (u >= 0.76);
    edge.destination = edge.destination * 2 + ((u >= 0.57 && u < 0.76) || u >= 0.95);
  }
  return edge;
}

}  // namespace

std::vector<int32_t> communities_of(const GenerateOptions& options) {
  std::vector<int32_t> community(static_cast<size_t>(options.num_vertices));
  const Draws draws(options.seed, Stream::community);
  std::vector<double> until;
  double sum = 0;
  for (int64_t k = 0; k < options.communities; ++k)
    until.push_back(sum += options.model == "rmat" ? 1 : 1 / std::sqrt(static_cast<double>(k + 1)));
  for (size_t v = 0; v < community.size(); ++v) {
    const auto it = std::upper_bound(until.begin(), until.end(), draws.uniform(v) * sum);
    community[v] = static_cast<int32_t>(std::min<ptrdiff_t>(it - until.begin(), options.communities - 1));
  }
  return community;
}

base::Result<EdgeBlocks> edge_blocks(const GenerateOptions& options) {
  const int64_t num_edges = options.num_vertices * options.edges_per_vertex;
  const Draws draws(options.seed, Stream::edge);
  if (options.model == "rmat") {
    const int levels = std::countr_zero(static_cast<uint64_t>(options.num_vertices));
    return blocks_of(num_edges, [=](uint64_t e) { return rmat_edge(draws, levels, e); });
  }
  const auto vertices = std::make_shared<const WeightedVertices>(options);
  const double inside = options.inside;
  return blocks_of(num_edges, [=](uint64_t e) {
    Edge edge;
    edge.source = vertices->anywhere(draws.bits(3 * e));
    const uint64_t word = draws.bits(3 * e + 1);
    const bool is_inside = draws.uniform(3 * e + 2) < inside;
    edge.destination = is_inside ? vertices->beside(edge.source, word) : vertices->anywhere(word);
    return edge;
  });
}

}  // namespace overlace::gnn
