// Sum of G row blocks, one element in one thread's registers from first source to rounding.
#pragma once

#include <cstdint>

#include "src/device/math/convert.cuh"
#include "src/device/math/swiglu.cuh"

namespace overlace::ops {

/// kVector elements that load and store as one unit.
template <class T, int kVector>
struct alignas(sizeof(T) * kVector) Pack {
  T v[kVector];
};

inline constexpr int kMaxSources = 16;

template <class Src, class Bias, class Dst>
struct ReduceParams {
  const Src* src[kMaxSources];
  int64_t src_pitch[kMaxSources];  // elements
  const Bias* bias;                // (cols) or null
  Dst* dst;                        // (rows, cols), or half as many columns
  int64_t dst_pitch, rows, cols;
  int count;
};

/// Grid-stride over packs of kVector columns. NOTE: plain loads: sources lie in symmetric buffers, which peers write,
/// so the read-only path (ld.global.nc) is not allowed.
/// kGated: a pair of columns becomes one.
template <class Acc, class Src, class Bias, class Dst, int kVector, bool kGated>
__global__ void __launch_bounds__(256) reduce_rows(const __grid_constant__ ReduceParams<Src, Bias, Dst> p) {
  const int64_t packs = p.cols / kVector;
  const int64_t total = packs * p.rows;
  for (int64_t i = blockIdx.x * int64_t{256} + threadIdx.x; i < total; i += gridDim.x * int64_t{256}) {
    const int64_t row = i / packs, col = (i - row * packs) * kVector;
    Acc sum[kVector] = {};
#pragma unroll 4
    for (int s = 0; s < p.count; ++s) {
      const auto in = *reinterpret_cast<const Pack<Src, kVector>*>(p.src[s] + row * p.src_pitch[s] + col);
#pragma unroll
      for (int j = 0; j < kVector; ++j) sum[j] += device::widen(in.v[j]);
    }
    if (p.bias != nullptr) {
#pragma unroll
      for (int j = 0; j < kVector; ++j) sum[j] += device::widen(p.bias[col + j]);
    }
    constexpr int kPair = kGated ? 2 : 1;
    using Out = Pack<Dst, kVector / kPair>;
    Out out;
#pragma unroll
    for (int j = 0; j < kVector / kPair; ++j) {
      if constexpr (kGated) sum[j] = device::swiglu(sum[j * 2], sum[j * 2 + 1]);
      out.v[j] = device::narrow<Dst>(sum[j]);
    }
    *reinterpret_cast<Out*>(p.dst + row * p.dst_pitch + col / kPair) = out;
  }
}

}  // namespace overlace::ops
