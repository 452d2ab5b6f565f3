// Packing: the features are read once, in their order, and the extents of all batches are written in bounded memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "src/base/status.h"
#include "src/gnn/levels/levels.h"
#include "src/gnn/pack/extent.h"
#include "src/gnn/sample/trace.h"

namespace overlace::gnn {

/// Where features come from.
class RowSource {
 public:
  virtual ~RowSource() = default;
  /// Rows [first, first + count), as they lie in the matrix.
  virtual base::Status read(int64_t first, int64_t count, std::span<std::byte> out) = 0;
};

/// Files of an artefact.
enum class PackFile : uint32_t {
  packs,       // extents of batches, then those of restores
  disk_cache,  // pages, segment by segment
  hot,         // rows of the caches at the start, ascending by vertex, without gaps
};

/// Where packed bytes go. The same bytes may be written more than once, in any order of places.
class PackStore {
 public:
  virtual ~PackStore() = default;
  virtual base::Status write(PackFile file, int64_t offset, std::span<const std::byte> bytes) = 0;
};

struct PackRequest {
  LevelOptions options;
  std::span<const int32_t> labels;  // by vertex; none: -1
  Generation generation{};
  int64_t memory_bytes = int64_t{1} << 30;  // for features; 24 bytes per vertex and 4 per packed row come on top
};

struct ExtentPlace {
  int64_t offset = 0, bytes = 0;
};

struct PackResult {
  LevelPlan plan;
  std::vector<ExtentPlace> extents;   // by batch
  std::vector<ExtentPlace> restores;  // by segment of the order; 0 bytes: nothing to restore
  std::vector<int64_t> first_page;    // by segment of the disk cache, and one more
  std::vector<uint32_t> hot;          // vertices of the hot file
  int64_t passes = 0;                 // over the batches, each with another part of the features
  int64_t bytes_read = 0, bytes_written = 0;
  int64_t file_bytes[3] = {0, 0, 0};  // by PackFile

  /// For open_extent(): of a batch, or -1 - segment of a restore.
  ExtentLimits limits(const PackRequest& request, int64_t num_vertices, int64_t number) const;
};

/// Plans and packs. Writes the same bytes for any memory_bytes. Errors of plan_levels(), source and store;
/// invalid_argument: fewer labels than vertices, memory for no row; corrupt: a
/// batch whose blocks do not fit its inputs.
base::Result<PackResult> pack_batches(const InputTrace& trace, const PackRequest& request, RowSource* source,
                                      PackStore* store);

}  // namespace overlace::gnn
