// A walk over batches in their sequence: what is in the CPU cache before each, and where each input row comes from.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "src/gnn/levels/disk_cache.h"
#include "src/gnn/levels/next_use.h"
#include "src/gnn/levels/program_pod.h"
#include "src/gnn/levels/slots.h"

namespace overlace::gnn {

/// Vertices in the caches before the first batch: in their order in the GPU cache, by slot of the CPU cache.
struct CachedRows {
  std::vector<uint32_t> gpu, cpu;
};

/// A row of a batch's ring buffer that enters a slot of the CPU cache once the batch is gathered.
struct Admission {
  uint32_t ring_row = 0, slot = 0;
  bool operator==(const Admission&) const = default;
};

/// Where the input rows of a batch come from and what stays of them. Ring rows: those of the pack, then those of the
/// pages, shape.rows for each.
struct BatchPlan {
  std::vector<uint32_t> program;      // a row_word() per input row
  std::vector<uint32_t> pack;         // vertices that the pack has, ascending
  std::vector<uint32_t> pages;        // of the segment of the disk cache, ascending
  std::vector<Admission> admissions;  // each slot at most once
};

/// Sums over batches.
struct LevelCounts {
  int64_t rows = 0;  // input rows; the sum of the next four
  int64_t gpu_hits = 0, cpu_hits = 0, ring_hits = 0, misses = 0;
  int64_t pack_rows = 0;  // misses that a pack has; pages have the others
  int64_t pages = 0;      // read
  int64_t admissions = 0;
  int64_t max_ring_rows = 0;  // of one batch
};

/// The disk cache as a walk needs it.
struct PageView {
  const PagePlaces* places = nullptr;  // null: all misses are in packs
  PageShape shape;
};

class LevelSweep {
 public:
  /// Preconditions: no vertex is cached twice, all caches and depth fit row_word(). `next` may be null unless the
  /// policy is belady.
  LevelSweep(int64_t num_vertices, CachePolicy policy, int depth, const CachedRows& cached);

  /// Begins a segment with `rows` in the slots and no batch in the ring.
  void begin(std::span<const uint32_t> rows, const NextUses* next);
  /// The next batch of the segment. invalid_argument: more ring rows than a program can name.
  base::Status step(std::span<const uint32_t> inputs, const PageView& pages, BatchPlan* out, LevelCounts* counts);
  /// What the batches so far have brought in is read from its slot from now on: the loader has copied all of it.
  void settle();
  /// By slot.
  std::span<const uint32_t> cpu_rows() const { return row_of_; }

 private:
  struct Miss {
    uint32_t vertex, position, ring_row;
  };
  void look_up(std::span<const uint32_t> inputs, BatchPlan* out, LevelCounts* counts);
  void place_misses(const PageView& pages, BatchPlan* out);
  void admit(BatchPlan* out);
  uint32_t next_of(size_t position) const { return next_ == nullptr ? kNeverUsed : next_->at(time_)[position]; }

  static constexpr uint32_t kNowhere = 0xffffffffu;
  uint32_t depth_;
  std::unique_ptr<SlotPolicy> policy_;
  const NextUses* next_ = nullptr;
  int64_t time_ = 0;                  // batches since begin()
  std::vector<uint32_t> where_;       // of each vertex: row_word() of a cache, or kNowhere
  std::vector<uint32_t> row_of_;      // vertex in each slot
  std::vector<int64_t> admitted_at_;  // time at which the row of a slot came in, -depth - 1 if before
  std::vector<uint32_t> ring_row_;    // of the row then
  std::vector<Miss> misses_;          // of the batch at hand
  std::vector<uint32_t> changed_;     // slots that it gave to others
};

}  // namespace overlace::gnn
