// Rows of a dataset straight from its disk, by their numbers: for evaluation and for samplers that nobody knows before.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "src/base/status.h"
#include "src/gnn/dataset/dataset.h"
#include "src/io/engine.h"
#include "src/io/stream.h"

namespace overlace::gnn {

struct RowStoreOptions {
  std::span<const int64_t> cached = {};  // vertices whose rows are read at open and stay in memory
  io::EngineOptions io = {};
};

struct RowStoreStats {
  int64_t rows = 0, cached_rows = 0;  // asked for; of them from memory
  int64_t reads = 0, bytes_read = 0;  // of neighbouring pages together; bytes of pages
};

/// Any thread may read; one reads at a time.
class RowStore {
 public:
  /// invalid_argument: a cached vertex out of range or repeated; out_of_memory; io.
  static base::Result<std::unique_ptr<RowStore>> open(const Dataset& dataset, RowStoreOptions options = {});
  RowStore(const RowStore&) = delete;
  RowStore& operator=(const RowStore&) = delete;

  int64_t num_rows() const { return num_rows_; }
  int64_t row_bytes() const { return row_bytes_; }
  /// Row i of `out` becomes row ids[i]; a vertex may come more than once, pages are shared. Nothing is read
  /// where an id is out of range or `out` of another size: invalid_argument names the first. io with file and offset.
  base::Status read(std::span<const int64_t> ids, std::span<std::byte> out);
  /// Since it was opened, without what opening has read.
  RowStoreStats stats() const;

 private:
  using Wanted = std::pair<int64_t, size_t>;  // vertex, place in the output
  /// Pages that are read at once, and the rows that lie on them.
  struct Run {
    int64_t begin = 0, end = 0;  // of the file
    size_t first = 0, last = 0;  // of the sorted rows
  };

  RowStore(int64_t num_rows, int64_t row_bytes, int64_t data_offset)
      : num_rows_(num_rows), row_bytes_(row_bytes), data_offset_(data_offset) {}
  base::Status fill_cache(std::span<const int64_t> vertices);
  std::vector<Run> runs_of(std::span<const Wanted> sorted) const;
  base::Status read_runs(std::span<const Run> runs, std::span<const Wanted> sorted, std::span<std::byte> out);

  const int64_t num_rows_, row_bytes_, data_offset_;
  std::vector<uint32_t> slot_of_;  // by vertex; empty: nothing is cached
  std::vector<std::byte> cache_;
  mutable std::mutex mutex_;
  RowStoreStats stats_;
  io::Ring ring_;
  std::shared_ptr<io::File> file_;
  std::unique_ptr<io::IoEngine> engine_;  // it goes before the ring
};

}  // namespace overlace::gnn
