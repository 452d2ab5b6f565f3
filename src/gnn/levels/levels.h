// Where every input row of every batch comes from: GPU cache, CPU cache, disk cache, packs.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "src/base/status.h"
#include "src/gnn/levels/disk_cache.h"
#include "src/gnn/levels/restore.h"
#include "src/gnn/levels/slots.h"
#include "src/gnn/levels/sweep.h"
#include "src/gnn/order/batch_order.h"
#include "src/gnn/sample/trace.h"

namespace overlace::gnn {

struct LevelOptions {
  int64_t gpu_rows = 0, cpu_rows = 0;  // sizes of the caches; what exceeds the vertices is not used
  CachePolicy policy = CachePolicy::belady;
  OrderChoice order = {};
  int depth = 3;  // D: batches after which an admitted row is read from its slot
  int64_t row_bytes = 0;
  int64_t epoch_batches =
      0;  // of a sampled epoch; 0: all. What enters the CPU cache waits for no batch of the next one
  DiskCacheOptions disk = {};
  std::optional<CachedRows> start = {};  // of another plan, for the batches of another split
};

/// Bytes of features that all batches read from disk, each once.
struct FeatureBytes {
  int64_t packs = 0, pages = 0, restores = 0;
  int64_t total() const { return packs + pages + restores; }
};

struct LevelPlan {
  CachedRows start;  // before the first batch of each segment of the order
  int64_t segment_batches = 0;
  int64_t epoch_batches = 0;      // of a sampled epoch
  std::vector<Restore> restores;  // after the last batch of each segment
  PageShape page;
  int64_t disk_segment_batches = 0;  // 0: no disk cache
  std::vector<SegmentPages> disk_segments;
  LevelCounts counts;
  FeatureBytes bytes;
  int64_t stored_rows = 0;  // in packs, disk cache and for restores
  double blow_up = 0;       // stored rows over vertices
};

/// Takes the plans of batches 0, 1, and so on. An error ends the planning with it.
using BatchPlanSink = std::function<base::Status(int64_t batch, const BatchPlan& plan)>;

/// The same plan for the same arguments. Each batch's inputs are checked. Memory: 24 bytes per vertex, 4 per input row
/// (of a segment, where the order has segments), with a disk cache 4 more per miss. invalid_argument: sizes below 0 or
/// beyond what a program can name, depth outside 0 to 64, an order that the policy does not allow, a disk cap too
/// small, sampled epochs that are not as many batches as the trace has.
base::Result<LevelPlan> plan_levels(const InputTrace& trace, const LevelOptions& options, const BatchPlanSink& sink);

}  // namespace overlace::gnn
