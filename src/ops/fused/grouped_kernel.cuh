// Rows of experts times their weights: the GEMM whose items and their number come from memory of the device.
#pragma once

#include "src/gemm_core/hooks/plain.cuh"
#include "src/gemm_core/run.cuh"
#include "src/ops/fused/grouped_launch.cuh"
#include "src/ops/fused/instances.h"

namespace overlace::ops::fused {

template <class Config>
struct StoreGrouped {
  static constexpr bool kGates = Config::kSpec.halves == 2;
  const CUtensorMap* c;
  template <class Item>
  __device__ __forceinline__ static constexpr bool is_gated(Item) {
    return kGates;
  }
  __device__ __forceinline__ void begin() {}
  __device__ __forceinline__ void store(const Tile&, int32_t row, int32_t col, uint32_t shared) {
    ptx::store_box(c, kGates ? col / 2 : col, row, shared);
  }
};

/// A weight of each row, in fp32, before what a gate is for is gated and rounded. Odd columns are what gates are for.
/// Thread t holds rows 16 (t / 32) + t % 32 / 4 and 8 rows further down of a block of 64, in values 4 j and 4 j + 1,
/// and the next two. The second of two products has none.
struct ScaleRows {
  static constexpr bool kReduces = true, kLoads = false;
  const GemmParams* gemm;
  const float* weights;  // of all rows of A

  __device__ __forceinline__ void start() {}
  __device__ __forceinline__ void begin() {}
  __device__ __forceinline__ void end() const {}
  /// Where rows come in while the kernel runs, their weights do too.
  template <class Config>
  __device__ __forceinline__ static float weight(const float* of_row) {
    if constexpr (Config::kSpec.chained) {
      return ptx::load_relaxed_gpu(of_row);
    } else {
      return __ldg(of_row);
    }
  }
  template <class Config, class Item>
  __device__ __forceinline__ void add(Accumulators<Config>& sums, const Cta<Config>& cta, uint32_t group, Item item,
                                      Ring<Config::kStages>&, Deadline&) const {
    const auto thread = static_cast<int32_t>(threadIdx.x % 128);
    const WorkItem of = item();
    if (is_second<Config>(*gemm, of.at)) return;
    const Tile tile = tile_of(*gemm, cta, of);
    const int32_t first = tile.row + cta.first_row(group) + thread / 32 * 16 + thread % 32 / 4;
#pragma unroll
    for (int block = 0; block < Config::kBlocksM; ++block) {
      const float* const of_row = weights + first + block * 64;
      const float upper = weight<Config>(of_row), lower = weight<Config>(of_row + 8);
#pragma unroll
      for (int i = 0; i < Config::kTileN / 2; i += 4) {
        sums[block][i + 1] *= upper;
        sums[block][i + 3] *= lower;
      }
    }
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

}  // namespace overlace::ops::fused

#define OVERLACE_GROUPED_UNIT(name) OVERLACE_UNIT(overlace::ops::fused, grouped, name, sm90_grouped_gemm)
