// A graph as compressed sparse columns: for each vertex its in-neighbours. Plain spans; whoever made them owns them.
#pragma once

#include <cstdint>
#include <span>
#include <variant>

#include "src/base/status.h"

namespace overlace::gnn {

/// Vertices in [0, N). A kernel visits the variant once and works on a plain span from there.
using VertexSpan = std::variant<std::span<const int32_t>, std::span<const int64_t>>;

/// The in-neighbours of v are indices[indptr[v]] to indices[indptr[v + 1] - 1]; repeated edges are allowed.
struct CscView {
  std::span<const int64_t> indptr;  // N + 1
  VertexSpan indices;               // E

  int64_t num_vertices() const { return indptr.empty() ? 0 : static_cast<int64_t>(indptr.size()) - 1; }
  int64_t num_edges() const {
    return std::visit([](auto span) { return static_cast<int64_t>(span.size()); }, indices);
  }
  int64_t degree(int64_t v) const { return indptr[static_cast<size_t>(v) + 1] - indptr[static_cast<size_t>(v)]; }
};

/// Reads all of it: indptr begins with 0, never falls and ends with E; N fits the type of indices; each index lies in
/// [0, N). invalid_argument names the first position that is wrong, its value and the value wanted.
base::Status check_graph(const CscView& graph);

}  // namespace overlace::gnn
