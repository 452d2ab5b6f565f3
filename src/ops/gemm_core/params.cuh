// What the kernel gets by value.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "src/spec/tile_order_pod.h"

namespace overlace::ops::gemm_core {

struct GemmParams {
  CUtensorMap a;                // (M, K)
  CUtensorMap b;                // (N, K) or (K, N)
  CUtensorMap c;                // (M, N)
  TileOrder order;              // of the clusters' tiles
  int32_t num_tiles, k_blocks;  // of each CTA's part of K
  uint32_t stage_bytes;         // that loads bring, with swapped operands; else a stage is full
  uint32_t* error;              // device or pinned memory: not 0 once a wait has passed its end
  uint64_t timeout_ns;
};

}  // namespace overlace::ops::gemm_core
