// One word per input row of a batch: where its features are when the batch is gathered. Read on hosts and devices.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define OVERLACE_GNN_HD __host__ __device__
#else
#define OVERLACE_GNN_HD
#endif

namespace overlace::gnn {

enum class RowLevel : uint32_t { gpu = 0, cpu = 1, ring = 2 };

inline constexpr uint32_t kRowIndexBits = 30;
inline constexpr uint32_t kMaxRowIndex = (1u << kRowIndexBits) - 1;

/// gpu: row of the GPU cache; cpu: slot of the CPU cache; ring: see ring_index().
OVERLACE_GNN_HD constexpr uint32_t row_word(RowLevel level, uint32_t index) {
  return static_cast<uint32_t>(level) << kRowIndexBits | index;
}
OVERLACE_GNN_HD constexpr RowLevel row_level(uint32_t word) { return static_cast<RowLevel>(word >> kRowIndexBits); }
OVERLACE_GNN_HD constexpr uint32_t row_index(uint32_t word) { return word & kMaxRowIndex; }

/// Row `row` of what the batch `age` batches ago read from disk, 0 <= age <= depth.
OVERLACE_GNN_HD constexpr uint32_t ring_index(uint32_t row, uint32_t age, uint32_t depth) {
  return row * (depth + 1) + age;
}
OVERLACE_GNN_HD constexpr uint32_t ring_row(uint32_t index, uint32_t depth) { return index / (depth + 1); }
OVERLACE_GNN_HD constexpr uint32_t ring_age(uint32_t index, uint32_t depth) { return index % (depth + 1); }

}  // namespace overlace::gnn
