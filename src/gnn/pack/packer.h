// Packing: the features are read once, in their order, and the extents of all batches are written in bounded memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
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

/// How far a packing is: all but headers and rows is written, and the rows below `rows`.
struct PackProgress {
  int64_t rows = 0;            // of the features
  std::vector<uint32_t> sums;  // crc32c of the rows so far: by batch, by restore that there is, of the hot file
};

/// Where packed bytes go. The same bytes may be written more than once, in any order of places.
class PackStore {
 public:
  virtual ~PackStore() = default;
  virtual base::Status write(PackFile file, int64_t offset, std::span<const std::byte> bytes) = 0;
  /// All that was written so far is to last, and `done` with it: a later call of pack_batches() may begin there.
  virtual base::Status keep(const PackProgress& done) {
    (void)done;
    return {};
  }
};

struct PackRequest {
  LevelOptions options;
  std::span<const int32_t> labels;  // by vertex; none: -1
  Generation generation{};
  int64_t memory_bytes = int64_t{1} << 30;  // for features; 24 bytes per vertex and 4 per packed row come on top
  std::optional<PackProgress> done = {};    // by an earlier run of the same request into the same files
  std::function<void(double share)> progress = {};  // of the rows that are packed
};

struct ExtentPlace {
  int64_t offset = 0, bytes = 0;
};

struct PackResult {
  LevelPlan plan;
  std::vector<ExtentPlace> extents;                             // by batch
  std::vector<ExtentPlace> restores;                            // by segment of the order; 0 bytes: nothing to restore
  std::vector<int64_t> first_page;                              // by segment of the disk cache, and one more
  std::vector<uint32_t> hot;                                    // vertices of the hot file
  int64_t most_rows = 0, most_pages = 0, most_block_bytes = 0;  // of a batch: input rows, pages, block_bytes()
  uint32_t hot_sum = 0;                                         // crc32c of the hot file
  int64_t passes = 0;  // over the batches, each with another part of the features
  int64_t bytes_read = 0, bytes_written = 0;
  int64_t file_bytes[3] = {0, 0, 0};  // by PackFile
};

/// Plans and packs. Writes the same bytes for any memory_bytes. Errors of plan_levels(), source and store;
/// invalid_argument: fewer labels than vertices, memory for no row, progress of
/// another request; corrupt: a batch whose blocks do not fit its inputs.
base::Result<PackResult> pack_batches(const InputTrace& trace, const PackRequest& request, RowSource* source,
                                      PackStore* store);

}  // namespace overlace::gnn
