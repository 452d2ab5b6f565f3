// The sequence of batches in a training epoch.
#pragma once

#include <cstdint>
#include <vector>

#include "src/base/status.h"

namespace overlace::gnn {

/// fixed: the same each training epoch. segments: the sequence inside a segment is fixed, segments are shuffled.
/// shuffle: any sequence, which only a cache that never changes allows.
enum class BatchOrder : uint8_t { fixed, segments, shuffle };
const char* name_of(BatchOrder order);

struct OrderChoice {
  BatchOrder order = BatchOrder::fixed;
  int64_t segment_batches = 0;  // of `segments`
};

/// What `auto` stands for: segments long enough to fill the CPU cache often, where there are at least four of them.
OrderChoice automatic_order(int64_t num_batches, int64_t cpu_rows, int64_t rows_per_batch);

/// Batches of a training epoch in their sequence, a function of its arguments alone.
std::vector<int64_t> epoch_sequence(OrderChoice choice, int64_t num_batches, uint64_t seed, uint64_t training_epoch);

}  // namespace overlace::gnn
