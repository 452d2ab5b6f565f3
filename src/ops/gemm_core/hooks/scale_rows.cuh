// A weight of each row, in fp32, before what a gate is for is gated and rounded.
#pragma once

#include "src/ops/gemm_core/mainloop.cuh"

namespace overlace::ops::gemm_core {

/// A Reduce hook that loads nothing through the stages. Odd columns are what gates are for. Thread t holds rows
/// 16 (t / 32) + t % 32 / 4 and 8 rows further down of a block of 64, in values 4 j and 4 j + 1, and the next two.
struct ScaleRows {
  static constexpr bool kReduces = true, kLoads = false;
  const GemmParams* gemm;
  const float* weights;  // of all rows of A

  __device__ __forceinline__ void start() {}
  __device__ __forceinline__ void begin() {}
  __device__ __forceinline__ void end() const {}
  template <class Config, class Item>
  __device__ __forceinline__ void add(Sums<Config>& sums, const Place<Config>& place, uint32_t group, Item item,
                                      Ring<Config::kStages>&, Patience&) const {
    const auto thread = static_cast<int32_t>(threadIdx.x % 128);
    const Tile tile = tile_of(*gemm, place, item());
    const int32_t first = tile.row + place.first_row(group) + thread / 32 * 16 + thread % 32 / 4;
#pragma unroll
    for (int block = 0; block < Config::kBlocksM; ++block) {
      const float upper = __ldg(weights + first + block * 64), lower = __ldg(weights + first + block * 64 + 8);
#pragma unroll
      for (int i = 0; i < Config::kTileN / 2; i += 4) {
        sums[block][i + 1] *= upper;
        sums[block][i + 3] *= lower;
      }
    }
  }
};

}  // namespace overlace::ops::gemm_core
