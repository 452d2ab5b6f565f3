// Gradients of experts' weights: products whose K is grouped, each expert's rows of both operands summed into its
// matrix.
#pragma once

#include "src/gemm_core/hooks/plain.cuh"
#include "src/gemm_core/run.cuh"
#include "src/ops/fused/instances.h"
#include "src/ops/fused/wgrad_launch.cuh"

namespace overlace::ops::fused {

struct StoreMatrix {
  static constexpr bool kGates = false;
  const CUtensorMap* c;  // (matrices, M, 1, N)
  __device__ __forceinline__ void begin() {}
  __device__ __forceinline__ void store(const Tile& tile, int32_t row, int32_t col, uint32_t shared) {
    ptx::store_box(c, col, 0, row, tile.at.shard, shared);
  }
};

template <class Config>
__global__ __launch_bounds__(kThreads, 1) void sm90_grouped_wgrad(const __grid_constant__ WgradParams p) {
  run<Config>(p.gemm, Drawn{p.counter, p.items, p.num_items}, WaitNone{}, StoreMatrix{&p.gemm.c}, SignalNone{},
              PushNone{}, ReduceNone{});
}

}  // namespace overlace::ops::fused

#define OVERLACE_WGRAD_UNIT(name) OVERLACE_UNIT(overlace::ops::fused, wgrad, name, sm90_grouped_wgrad)
