#include "src/gnn/graph.h"

#include <limits>
#include <type_traits>

namespace overlace::gnn {
namespace {

template <class Index>
base::Status check_indices(std::span<const Index> indices, int64_t num_vertices) {
  if (num_vertices > std::numeric_limits<Index>::max())
    return base::invalid_argument("graph: {} vertices, wanted at most {} where indices have {} bytes", num_vertices,
                                  std::numeric_limits<Index>::max(), sizeof(Index));
  // NOTE: one unsigned comparison finds negative ones too.
  using Unsigned = std::make_unsigned_t<Index>;
  for (size_t e = 0; e < indices.size(); ++e)
    if (static_cast<Unsigned>(indices[e]) >= static_cast<Unsigned>(num_vertices))
      return base::invalid_argument("graph: indices[{}] is {}, wanted a vertex in [0, {})", e, indices[e],
                                    num_vertices);
  return {};
}

}  // namespace

base::Status check_graph(const CscView& graph) {
  if (graph.indptr.empty()) return base::invalid_argument("graph: indptr is empty, wanted N + 1 offsets");
  if (graph.indptr[0] != 0) return base::invalid_argument("graph: indptr[0] is {}, wanted 0", graph.indptr[0]);
  for (size_t v = 1; v < graph.indptr.size(); ++v)
    if (graph.indptr[v] < graph.indptr[v - 1])
      return base::invalid_argument("graph: indptr[{}] is {}, wanted at least indptr[{}], which is {}", v,
                                    graph.indptr[v], v - 1, graph.indptr[v - 1]);
  if (graph.indptr.back() != graph.num_edges())
    return base::invalid_argument("graph: indptr[{}], the last, is {}, wanted the number of edges, {}",
                                  graph.indptr.size() - 1, graph.indptr.back(), graph.num_edges());
  return std::visit([&](auto span) { return check_indices(span, graph.num_vertices()); }, graph.indices);
}

}  // namespace overlace::gnn
