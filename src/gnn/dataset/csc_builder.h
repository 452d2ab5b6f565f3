// Edges in any order become indptr.npy and indices.npy, in bounded memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "src/base/status.h"

namespace overlace::gnn {

inline constexpr size_t kDataOffset = 4096;  // of .npy files that we write: data begin with a page

struct Edge {
  int64_t source = 0, destination = 0;
};

/// Edges in numbered blocks that can be made again, each time the same, by any thread.
struct EdgeBlocks {
  int64_t num_blocks = 0;
  std::function<base::Status(int64_t block, std::vector<Edge>* edges)> edges_of;  // replaces *edges
};

struct CscOptions {
  int64_t num_vertices = 0;
  bool both_directions = false;  // each edge is stored as its reverse, too
  bool drop_loops = false;
  int64_t memory_bytes = int64_t{1} << 30;  // of indices at a time, beside 12 bytes per vertex
  int threads = 0;                          // 0: the cores there are
};

/// Writes both files into `directory`, durably; returns the number of edges. In-neighbours of a vertex are sorted, so
/// that the files are the same for any number of threads and any memory. Indices are i32 where N allows. The blocks are
/// gone through once to count, then once for each part of the vertices whose indices fit the memory.
/// invalid_argument names the first edge, by block and position, that leaves [0, N).
base::Result<int64_t> build_csc(const EdgeBlocks& blocks, const CscOptions& options, const std::string& directory);

}  // namespace overlace::gnn
