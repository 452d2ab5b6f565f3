// Tiles whose columns are pairs of a gate and what it is for: one result of both, staged as half as many columns.
#pragma once

#include "src/device/math/swiglu.cuh"
#include "src/gemm_core/epilogue.cuh"

namespace overlace::gemm_core {

/// Results of 32 columns, of this warp's rows, as ptx::store_matrices wants them. A thread has columns 8 j + 2 t and
/// the next, t = lane % 4, so results 4 j + t; a matrix wants 2 t and the next of 8. Each lane of a quad gives two
/// words and gets two, in as many shuffles: no lane gives or gets two at once.
template <class Element>
__device__ __forceinline__ void gate_columns(const float* d, uint32_t (&r)[4]) {
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t from = lane / 4 * 4 + lane % 2 * 2 + lane / 2 % 2;
  const bool is_odd = lane % 2 != 0, is_upper = lane % 4 >= 2;
  const uint32_t low = is_upper ? 0x1054 : 0x5410, high = is_upper ? 0x3276 : 0x7632;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float v[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) v[j] = device::swiglu(d[j * 4 + half * 2], d[j * 4 + half * 2 + 1]);
    const uint32_t even = round_pair(v[0], v[2], Element{}), odd = round_pair(v[1], v[3], Element{});
    const uint32_t first = __shfl_sync(~0u, is_odd ? odd : even, static_cast<int>(from));
    const uint32_t second = __shfl_sync(~0u, is_odd ? even : odd, static_cast<int>(from ^ 1));
    r[half] = __byte_perm(first, second, low);
    r[2 + half] = __byte_perm(first, second, high);
  }
}

/// Writes as write_rounded does: pieces of as many columns of the tile, so half as wide as a buffer, in boxes with the
/// swizzle of their width.
template <class Config>
__device__ __forceinline__ void write_gated(uint32_t to, const float* d) {
  static_assert(!Staging<Config>::kSwapsAb);
  constexpr uint32_t kRowBytes = Staging<Config>::kRowBytes / 2;
  const uint32_t lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16 + lane % 16;
  const uint32_t swizzle = kRowBytes == 64 ? row / 2 % 4 : row / 4 % 2;
#pragma unroll
  for (uint32_t i = 0; i < Staging<Config>::kCols / 32; ++i) {
    uint32_t r[4];
    gate_columns<typename Config::Element>(d + i * 16, r);
    ptx::store_matrices(to + row * kRowBytes + ((i * 2 + lane / 16) ^ swizzle) * 16, r[0], r[1], r[2], r[3]);
  }
}

}  // namespace overlace::gemm_core
