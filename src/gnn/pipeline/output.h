// What the consumer of a batch gets, in one piece of memory: rows of features, then ids, edges and classes as trainers
// take them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "src/gnn/sample/trace.h"

namespace overlace::gnn {

inline constexpr int64_t kOutputAlignment = 256;  // of each array

/// Rows of a CPU cache below this size are gathered by CPUs and copied; a device reads larger ones itself, at nine
/// tenths of the link's rate from 128 B on, at 63 % of it at 64 B (docs/lab/pinned-rows.md).
inline constexpr int64_t kFarRowBytes = 128;

/// Arrays of a batch, in bytes behind its rows. A device gets all of them by one copy, and what its gather needs with
/// them.
struct ArrayPlaces {
  int64_t ids = 0, edges = 0, classes = 0;
  int64_t end = 0;      // of what a consumer takes
  int64_t sources = 0;  // of a device: i64 per input row, its row in all tables
  int64_t staged = 0;   // of a device: rows of the CPU cache that CPUs have gathered
};
ArrayPlaces array_places(const BatchView& batch, bool is_on_device);

/// The largest of all batches: input rows and bytes of blocks.
struct LargestBatch {
  int64_t rows = 0, block_bytes = 0;
};
/// Bytes of an output for any batch.
struct OutputRoom {
  int64_t blocks = 0, rows = 0, arrays = 0;  // blocks: arrays as they lie on the disk
  int64_t host = 0, device = 0;              // of all
};
/// `has_cpu_cache`: a device may get rows of it with the arrays.
OutputRoom output_room(const LargestBatch& largest, int64_t row_bytes, bool is_on_device, bool has_cpu_cache);

/// Writes ids, edges and classes to their places in `arrays`.
void write_arrays(const BatchView& batch, std::span<const int32_t> labels, const ArrayPlaces& places,
                  std::byte* arrays);

}  // namespace overlace::gnn
