// Stores a tile of C into the rows of its shard: what lies beyond them is clipped.
#pragma once

#include "src/device/ptx/tensor.cuh"
#include "src/gemm_core/mainloop.cuh"
#include "src/ops/fused/exchange.cuh"

namespace overlace::ops::fused {

struct StoreShard {
  static constexpr bool kGates = true;
  const GatherParams* g;
  const TileOrder* order;
  template <class Item>
  __device__ __forceinline__ bool is_gated(Item) const {
    return g->is_gated;
  }
  __device__ __forceinline__ void begin() {}
  __device__ __forceinline__ void store(const Tile& tile, int32_t row, int32_t col, uint32_t shared) {
    ptx::store_box(&g->c[tile.at.shard], g->is_gated ? col / 2 : col, row - order->row_begin[tile.at.shard], shared);
  }
};

}  // namespace overlace::ops::fused
