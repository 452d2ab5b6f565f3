// Graphs with features and labels, made from a seed: the same files for any number of threads.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "src/base/status.h"
#include "src/gnn/dataset/csc_builder.h"
#include "src/gnn/dataset/dataset.h"

namespace overlace::gnn {

struct GenerateOptions {
  std::string model = "dcsbm";     // dcsbm or rmat
  int64_t num_vertices = 1 << 16;  // rmat: a power of two
  int64_t edges_per_vertex = 16;   // drawn; both directions are stored
  int64_t dim = 128, num_classes = 32, communities = 256;
  double alpha = 2.0;                              // of weights: P(w > x) = x^(1 - alpha)
  double weight_cap = 4;                           // largest weight, in sqrt(N)
  double inside = 0.6;                             // share of edges inside a community
  double train = 0.15, valid = 0.05, test = 0.10;  // shares of the vertices with an edge
  uint64_t seed = 1;
  int64_t memory_bytes = int64_t{1} << 30;
  int threads = 0;
  std::function<void(double share)> progress = {};  // of the whole; from one thread
};

/// "papers", "mag", "friendster", "igb" or "products": sizes of a row and skew of accesses of these graphs at any
/// number of vertices. invalid_argument for another name.
base::Result<GenerateOptions> like(std::string_view name);

/// The edges alone.
base::Result<EdgeBlocks> edge_blocks(const GenerateOptions& options);
/// The community of each vertex; label = community mod classes. With rmat it is drawn evenly.
std::vector<int32_t> communities_of(const GenerateOptions& options);

/// Makes `directory` and a dataset in it. invalid_argument with name and value before anything is written; a directory
/// that has a dataset is refused.
base::Result<Described> generate(const GenerateOptions& options, const std::string& directory);

}  // namespace overlace::gnn
