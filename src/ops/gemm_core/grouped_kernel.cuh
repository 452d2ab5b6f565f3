// Rows of experts times their weights: the GEMM whose items and their number come from memory of the device.
#pragma once

#include "src/ops/gemm_core/grouped_launch.cuh"
#include "src/ops/gemm_core/hooks/plain.cuh"
#include "src/ops/gemm_core/hooks/scale_rows.cuh"
#include "src/ops/gemm_core/instances.h"
#include "src/ops/gemm_core/run.cuh"

namespace overlace::ops::gemm_core {

template <class Config>
struct StoreGrouped {
  static constexpr bool kGates = Config::kSpec.halves == 2;
  const CUtensorMap* c;
  __device__ __forceinline__ static constexpr bool is_gated() { return kGates; }
  __device__ __forceinline__ void begin() {}
  __device__ __forceinline__ void store(const Tile&, int32_t row, int32_t col, uint32_t shared) {
    ptx::store_box(c, kGates ? col / 2 : col, row, shared);
  }
};

template <class Config>
__device__ __forceinline__ auto reduce_of(const GroupedParams& p) {
  if constexpr (Config::kSpec.halves == 2) {
    return ScaleRows{&p.gemm, p.row_weights};
  } else {
    return ReduceNone{};
  }
}

template <class Config>
__global__ __launch_bounds__(kThreads, 1) void sm90_grouped_gemm(const __grid_constant__ GroupedParams p) {
  run<Config>(p.gemm, Drawn{p.counter, p.items, *p.num_items}, WaitNone{}, StoreGrouped<Config>{&p.gemm.c},
              SignalNone{}, PushNone{}, reduce_of<Config>(p));
}

}  // namespace overlace::ops::gemm_core

#define OVERLACE_GROUPED_UNIT(name) OVERLACE_UNIT(grouped, name, sm90_grouped_gemm)
