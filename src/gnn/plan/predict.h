// A plan without its packs: bytes that a training epoch reads, memory that it needs, space on disk.
#pragma once

#include <cstdint>
#include <vector>

#include "src/gnn/levels/levels.h"
#include "src/gnn/sample/trace.h"

namespace overlace::gnn {

/// Memory that a loader takes when it opens, in bytes: on a GPU gpu() and cpu(), on CPUs alone().
/// Rings have R = 2 D + 2 buffers: the CPU's for the largest extent and the pages of a batch, and one for the largest
/// restore, the GPU's for the rows that a batch has read. Outputs: three, of the rows and arrays of the largest batch.
struct LoaderMemory {
  int64_t gpu_cache = 0, gpu_ring = 0, gpu_outputs = 0;
  int64_t cpu_cache = 0, cpu_ring = 0, cpu_outputs = 0;
  int64_t alone_outputs = 0;  // of a loader without a GPU
  int64_t gpu() const { return gpu_cache + gpu_ring + gpu_outputs; }
  int64_t cpu() const { return cpu_cache + cpu_ring + cpu_outputs; }
  int64_t alone() const { return gpu_cache + cpu_cache + cpu_ring + alone_outputs; }
};

/// What a loader does for one item of its sequence: a batch, or the restore behind a segment (or behind a sampled epoch
/// inside of one: then of nothing).
struct ItemBytes {
  int64_t extent = 0, pages = 0;                 // bytes read
  int64_t rows = 0, cpu_rows = 0, admitted = 0;  // gathered, of them from the CPU cache; entering that
  bool is_restore = false;
};

struct Prediction {
  LevelOptions options;
  LevelPlan plan;              // its bytes are those of features alone
  int64_t bytes_read = 0;      // by a training epoch: extents with blocks, ids, programs and padding; pages; restores
  int64_t bytes_on_disk = 0;   // extents, pages of the disk cache, restores
  int64_t bytes_of_pages = 0;  // of them, in the disk cache
  int64_t bytes_to_gpu = 0;    // by a training epoch: extents and pages, and rows of the CPU cache
  int64_t largest_extent = 0;  // of a batch
  int64_t largest_restore = 0;
  int64_t most_page_bytes = 0;   // pages of one batch
  int64_t most_rows = 0;         // input rows of one batch
  int64_t most_block_bytes = 0;  // blocks, labels and ids of one batch
  LoaderMemory memory;
  std::vector<ItemBytes> items;  // batches in their numbers' order
};

/// Exact: packing and training read and store these bytes. Errors as of plan_levels().
base::Result<Prediction> predict(const InputTrace& trace, const LevelOptions& options);

/// Memory that may be used, in bytes, and what to use it for.
struct FitRequest {
  int64_t gpu_bytes = 0;  // 0: it trains on CPUs
  int64_t cpu_bytes = 0;
  int64_t disk_bytes = 0;     // rows that packs and disk cache may hold, in bytes; 0: as many as there are
  LevelOptions options = {};  // sizes of the levels are ignored
  bool is_automatic_order = true;
};

/// Bytes of the host that a loader takes where it is fitted to that memory.
int64_t host_bytes(const Prediction& prediction, const FitRequest& request);

/// Caches with which a loader fits the memory, within a few percent of the largest. out_of_memory names what its
/// buffers need where caches of no rows do not help.
base::Result<Prediction> fit(const InputTrace& trace, const FitRequest& request);

}  // namespace overlace::gnn
