// What a loader has to know of packs beside the packs: a file of its own, small, checked as a whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "src/base/status.h"
#include "src/gnn/pack/packer.h"

namespace overlace::gnn {

struct PackPlan {
  Generation generation{};
  int64_t num_vertices = 0, row_bytes = 0;
  int depth = 0;
  CachePolicy policy = CachePolicy::belady;
  OrderChoice order;
  int64_t segment_batches = 0, disk_segment_batches = 0;
  int64_t epoch_batches = 0;  // of a sampled epoch
  PageShape page;
  int64_t max_ring_rows = 0;                                    // of a batch
  int64_t most_rows = 0, most_pages = 0, most_block_bytes = 0;  // of a batch, as PackResult
  int64_t file_bytes[3] = {0, 0, 0};                            // by PackFile
  CachedRows start;                            // rows of the caches before the first batch of a segment
  std::vector<ExtentPlace> extents, restores;  // by batch; by segment, 0 bytes: nothing to restore
  std::vector<int64_t> first_page;             // by segment of the disk cache, and one more
  std::vector<uint32_t> page_sums;             // crc32c of each page of the disk cache
  uint32_t hot_sum = 0;                        // crc32c of the hot file

  int64_t num_batches() const { return std::ssize(extents); }
  int64_t sampled_epochs() const { return num_batches() / epoch_batches; }
  Segments segments() const { return Segments(order, num_batches(), epoch_batches); }
  /// Vertices of the hot file, ascending.
  std::vector<uint32_t> hot_rows() const;
  /// For open_extent(): of a batch, or -1 - segment of a restore.
  ExtentLimits limits(int64_t number) const;
  /// Bytes, of a batch and of a restore.
  int64_t largest_extent() const;
  int64_t largest_restore() const;
};

/// Without sums, which whoever wrote the files adds.
PackPlan plan_of(const PackRequest& request, const PackResult& packed, int64_t num_vertices);

std::vector<std::byte> encode_plan(const PackPlan& plan);
/// corrupt with `name` and what is wrong: cut, a checksum, sizes that do not belong together, places outside their
/// files; version_mismatch for another format.
base::Result<PackPlan> parse_plan(std::span<const std::byte> bytes, const std::string& name);

}  // namespace overlace::gnn
