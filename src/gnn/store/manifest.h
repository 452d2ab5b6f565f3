// manifest.json: what lies in the directory of an artefact.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "overlace/gnn.h"
#include "src/base/status.h"
#include "src/gnn/levels/slots.h"
#include "src/gnn/order/batch_order.h"
#include "src/gnn/sample/sampler.h"

namespace overlace::gnn {

/// The sampled batches of a split, for train of one of its sampled epochs.
struct TraceEntry {
  Split split = Split::train;
  int64_t epoch = 0;
  std::string file;
  int64_t bytes = 0, batches = 0, input_rows = 0;
  uint32_t sum = 0;  // crc32c of the file
};

/// The packs of a split, or of one rank's share of its batches.
struct PackEntry {
  std::string name;  // pack_name()
  Split split = Split::train;
  int64_t epochs = 1;           // sampled epochs of train that its caches were planned for
  int64_t rank = 0, ranks = 1;  // whose share of each sampled epoch
  BatchOrder order = BatchOrder::fixed;
  CachePolicy policy = CachePolicy::belady;
  int64_t segment_batches = 0, gpu_rows = 0, cpu_rows = 0, depth = 0;
  int64_t page_bytes = 0, disk_rows = 0;  // of the disk cache, disk_rows 0: none
  double blow_up = 0;                     // stored rows over vertices
  int64_t feature_bytes = 0;              // that a cycle reads: as many training epochs as are sampled
  int64_t bytes_read = 0;                 // with blocks, programs and padding
  int64_t packs_bytes = 0, disk_cache_bytes = 0, hot_bytes = 0, plan_bytes = 0;  // of its files
  uint32_t plan_sum = 0;                                                         // crc32c of the plan file
};

/// Names what is whole: files without an entry are those of a run that has not ended.
struct Manifest {
  std::string dataset;    // its id
  std::string directory;  // where it was; the artefact may be used without it
  int64_t num_vertices = 0, num_classes = 0, dim = 0, row_bytes = 0;
  std::string dtype;
  SamplerOptions sampler;
  std::vector<TraceEntry> traces;
  std::vector<PackEntry> packs;

  const TraceEntry* trace(Split split, int64_t epoch = 0) const;
  /// Traces 0, 1 and so on of a split, up to the first that is missing.
  int64_t sampled_epochs(Split split) const;
  const PackEntry* pack(std::string_view name) const;
};

/// "fixed", "fixed-valid", of rank 1 of 4 "fixed-valid-r1of4".
std::string pack_name(BatchOrder order, Split split, int64_t rank = 0, int64_t ranks = 1);
/// Ranks that an artefact can have packs for.
inline constexpr int64_t kMaxRanks = 1024;

std::string manifest_json(const Manifest& manifest);
/// invalid_argument with source, key, value and what is wanted; version_mismatch for another format. Unknown keys and
/// names that leave the directory are refused.
base::Result<Manifest> parse_manifest(std::string_view text, std::string_view source);

}  // namespace overlace::gnn
