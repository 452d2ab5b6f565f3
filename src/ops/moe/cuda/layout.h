// The memory of a layer on GPUs, and which instances of the grouped GEMM its products are.
#pragma once

#include <cstddef>
#include <cstdint>

#include "overlace/ops/moe.h"
#include "src/ops/fused/wgrad_launch.cuh"
#include "src/ops/moe/cuda/kernels.h"
#include "src/ops/moe/route.h"

namespace overlace::ops::moe {

inline constexpr int kMostProducts = 5;  // of a call
inline constexpr int kWgrads = 2;        // of w1 and of w2

/// A grouped GEMM: how the weights lie, their halves, whether results stay fp32.
struct ProductKind {
  fused::BMajor b_major;
  int halves;
  bool stores_fp32;
};
inline constexpr ProductKind kUp{fused::BMajor::k, 2, false}, kDown{fused::BMajor::k, 1, false};
inline constexpr ProductKind kAgain{fused::BMajor::k, 1, true};    // x w1^T, before the gate
inline constexpr ProductKind kOfInner{fused::BMajor::n, 1, true};  // dy w2
inline constexpr ProductKind kOfRows{fused::BMajor::n, 1, false};  // what that gives, w1
const fused::Instance& instance_of(DType dtype, const ProductKind& kind);
const fused::Instance& wgrad_instance(DType dtype);
const fused::Instance& layer_instance(DType dtype);

/// Extents of the gradient of w1 (0) or w2 (1).
struct WeightExtents {
  int64_t rows, columns;
};
WeightExtents extents_of(const MoeSpec& spec, int weight);

/// Zeros before each call.
struct Control {
  Account account;
  struct alignas(kCounterPitch) {
    uint32_t drawn;
  } counters[kMostProducts];
};

/// Offsets of parts of the heap's block, and of memory of this device alone.
struct Layout {
  uint64_t tokens, counts, entries, rows[kMostPlanes], sums, dweights;
  size_t heap_bytes;
  uint64_t hist, slots, first, load, groups, items[kProducts], num_items, row_weights, pools[kMostPlanes], hidden,
      control;
  // The layer in one kernel:
  uint64_t choices, incoming, outgoing, next_in, next_out, num_rows, flow_items, own_sums;
  uint64_t first_rows, last_rows, arrived, ended, hidden_done, drawn_in, drawn_out;
  size_t zeroed_bytes;                                      // from control on, before each call
  uint64_t before, q, dbefore, dots, wgrad_items[kWgrads];  // gradients
  size_t device_bytes;
  int64_t pool_rows;
  int32_t columns[kProducts];
};
Layout layout_of(const MoeSpec& spec, const Placement& placement, int rank);

}  // namespace overlace::ops::moe
