// A bias of the columns: each sum gets its own, in fp32, before it is rounded.
#pragma once

#include "src/gemm_core/mainloop.cuh"

namespace overlace::gemm_core {

/// All threads of a consumer warpgroup: `sums` begin at column `col`, of n. Rounded by itself, whatever the compiler
/// would like to contract. Thread t holds columns 8 j + 2 (t % 4) and the next of two rows, in values 4 j up to 4 j
/// + 3.
template <class Element, int kFloats>
__device__ __forceinline__ void add_bias(float (&sums)[kFloats], const void* bias, int32_t col, int32_t n) {
  const auto* of_column = static_cast<const Element*>(bias);
  const int32_t first = col + static_cast<int32_t>(threadIdx.x % 4) * 2;
#pragma unroll
  for (int i = 0; i < kFloats; i += 4) {
    // NOTE: columns beyond n, which is even, are clipped later; loads behind a branch each would wait for each other.
    const int32_t wanted = first + i * 2, at = wanted < n ? wanted : n - 2;
    const float low = static_cast<float>(of_column[at]), high = static_cast<float>(of_column[at + 1]);
    sums[i] = __fadd_rn(sums[i], low);
    sums[i + 1] = __fadd_rn(sums[i + 1], high);
    sums[i + 2] = __fadd_rn(sums[i + 2], low);
    sums[i + 3] = __fadd_rn(sums[i + 3], high);
  }
}

/// Adds the bias where rows of a tile are columns of the result: `sums` begin at row `row`, of n. Thread t holds rows
/// 16 (t / 32) + t % 32 / 4 and 8 rows further down.
template <class Element, int kFloats>
__device__ __forceinline__ void add_bias_of_rows(float (&sums)[kFloats], const void* bias, int32_t row, int32_t n) {
  const auto* of_row = static_cast<const Element*>(bias);
  const auto thread = static_cast<int32_t>(threadIdx.x % 128);
  const int32_t first = row + thread / 32 * 16 + thread % 32 / 4, last = n - 1;  // rows beyond are clipped later
  const float upper = static_cast<float>(of_row[first < last ? first : last]);
  const float lower = static_cast<float>(of_row[first + 8 < last ? first + 8 : last]);
#pragma unroll
  for (int i = 0; i < kFloats; i += 4) {
    sums[i] = __fadd_rn(sums[i], upper);
    sums[i + 1] = __fadd_rn(sums[i + 1], upper);
    sums[i + 2] = __fadd_rn(sums[i + 2], lower);
    sums[i + 3] = __fadd_rn(sums[i + 3], lower);
  }
}

/// A Reduce hook that loads nothing through the stages.
struct AddBias {
  static constexpr bool kReduces = true, kLoads = false;
  const GemmParams* gemm;
  const void* bias;  // (N) of the output's type, or null
  int32_t n;

  __device__ __forceinline__ void start() {}
  __device__ __forceinline__ void begin() {}
  __device__ __forceinline__ void end() const {}
  template <class Config, class Item>
  __device__ __forceinline__ void add(Accumulators<Config>& sums, const Cta<Config>& cta, uint32_t, Item item,
                                      Ring<Config::kStages>&, Deadline&) const {
    if (bias == nullptr) return;
    ptx::wait_for_previous_grid();
    const Tile tile = tile_of(*gemm, cta, item());
#pragma unroll
    for (int block = 0; block < Config::kBlocksM; ++block) {
      if constexpr (Config::kSpec.swaps_ab) {
        add_bias_of_rows<typename Config::Element>(sums[block], bias, tile.row, n);
      } else {
        add_bias<typename Config::Element>(sums[block], bias, tile.col, n);
      }
    }
  }
};

}  // namespace overlace::gemm_core
