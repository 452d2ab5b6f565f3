// The kernel of a pass over pieces of parameters, and how it reads and writes.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "src/train/co2/cuda/pass.h"

namespace overlace::train {

inline constexpr int kThreads = 256, kPerThread = 4, kWarps = kThreads / 32;

/// Neighbours in one load.
template <class T, int kCount>
struct alignas(sizeof(T) * kCount) Pack {
  T values[kCount];
};

inline __device__ float widen(float value) { return value; }
inline __device__ float widen(__nv_bfloat16 value) { return __bfloat162float(value); }
inline __device__ float widen(__half value) { return __half2float(value); }
inline __device__ void narrow(float value, float* to) { *to = value; }
inline __device__ void narrow(float value, __nv_bfloat16* to) { *to = __float2bfloat16_rn(value); }
inline __device__ void narrow(float value, __half* to) { *to = __float2half_rn(value); }

struct Sums {
  double m2 = 0, w2 = 0, v2 = 0;
  int bad = 0, clipped = 0;
};

struct Element {
  float x, a, m, kept, wire, residual;
  bool keeps;  // there is memory for what is kept
};

inline __device__ double square(float value) { return static_cast<double>(value) * static_cast<double>(value); }

/// One element, with the roundings of the pass on CPUs: no multiplication is fused with an addition.
template <class Wire, PassMode kMode>
__device__ void step(const PassPod& pass, float bound, float groups, Element& e, Sums& sums) {
  const float v = e.wire;
  float kept = 0;
  if (kMode != PassMode::apply) {
    const float u = __fsub_rn(__fsub_rn(e.a, e.kept), e.x);
    const bool is_finite = isfinite(u);
    sums.w2 += square(u);
    sums.bad += is_finite ? 0 : 1;
    kept = e.keeps && is_finite ? __fmul_rn(pass.keep, u) : 0.0f;
    if constexpr (sizeof(Wire) == sizeof(float)) {
      e.wire = __fdiv_rn(u, groups);
    } else {
      const float whole = __fadd_rn(u, e.residual);
      Wire sent;
      narrow(__fdiv_rn(whole, groups), &sent);
      e.wire = widen(sent);
      const float left = __fsub_rn(whole, __fmul_rn(groups, e.wire));
      e.residual = isfinite(left) ? left : 0.0f;
    }
  }
  if (kMode == PassMode::delta) return;
  sums.v2 += square(v);
  e.kept = kept;
  float next = e.a;
  if (pass.is_applied != 0) {
    const float d = __fsub_rn(v, __fmul_rn(pass.pull, e.m));
    float moved = __fadd_rn(__fmul_rn(pass.beta, e.m), __fmul_rn(d, pass.inv_lambda));
    sums.clipped += moved > bound || moved < -bound ? 1 : 0;
    moved = moved > bound ? bound : moved;
    moved = moved < -bound ? -bound : moved;
    e.m = moved;
    e.a = next = __fsub_rn(e.a, __fadd_rn(__fmul_rn(pass.step_m, moved), __fmul_rn(pass.step_d, d)));
    if (kMode == PassMode::apply && pass.mix != 0)
      next = __fadd_rn(__fmul_rn(pass.mix, e.x), __fmul_rn(__fsub_rn(1.0f, pass.mix), next));
  }
  sums.m2 += square(e.m);
  e.x = __fsub_rn(next, kept);
}

/// Sum over the block in a fixed order; of thread 0.
inline __device__ double block_sum(double value, double* shared) {
  for (unsigned half = 16; half > 0; half /= 2) value += __shfl_down_sync(0xffffffffu, value, half);
  __syncthreads();  // the sum before was read
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  double sum = 0;
  if (threadIdx.x == 0)
    for (int warp = 0; warp < kWarps; ++warp) sum += shared[warp];
  return sum;
}

inline __device__ SumsPod block_sums(const SumsPod& mine) {
  __shared__ double shared[kWarps];
  SumsPod total;
  total.m2 = block_sum(mine.m2, shared);
  total.w2 = block_sum(mine.w2, shared);
  total.v2 = block_sum(mine.v2, shared);
  total.bad = block_sum(mine.bad, shared);
  total.clipped = block_sum(mine.clipped, shared);
  return total;
}

template <class T>
__device__ bool is_aligned(const T* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % (sizeof(T) * kPerThread) == 0;
}

template <int kCount, class T>
__device__ Pack<T, kCount> load(const T* from, int64_t i) {
  return *reinterpret_cast<const Pack<T, kCount>*>(from + i);
}
template <class T, int kCount>
__device__ void store(T* to, int64_t i, const Pack<T, kCount>& pack) {
  *reinterpret_cast<Pack<T, kCount>*>(to + i) = pack;
}
inline __device__ float* at(float* array, int64_t place) { return array == nullptr ? nullptr : array + place; }

/// The arrays of one piece, from its first element on; momentum, kept and residual may be null.
template <class X, class Wire>
struct Arrays {
  X* x;
  Wire* wire;
  float *a, *m, *kept, *residual;

  __device__ bool is_packed() const {
    return is_aligned(x) && is_aligned(wire) && is_aligned(a) && is_aligned(m) && is_aligned(kept) &&
           is_aligned(residual);
  }
};

/// Four neighbours of each array, or one.
template <class X, class Wire, int kCount>
struct Packs {
  Pack<X, kCount> x;
  Pack<Wire, kCount> wire;
  Pack<float, kCount> a, m, kept, residual;
};

template <PassMode kMode, int kCount, class X, class Wire>
__device__ Packs<X, Wire, kCount> fetch(const Arrays<X, Wire>& of, int64_t i) {
  Packs<X, Wire, kCount> q{load<kCount>(of.x, i), load<kCount>(of.wire, i), load<kCount>(of.a, i), {}, {}, {}};
  if (kMode != PassMode::delta && of.m != nullptr) q.m = load<kCount>(of.m, i);
  if (of.kept != nullptr) q.kept = load<kCount>(of.kept, i);
  if (of.residual != nullptr) q.residual = load<kCount>(of.residual, i);
  return q;
}

template <PassMode kMode, int kCount, class X, class Wire>
__device__ void put(const Arrays<X, Wire>& of, int64_t i, const Packs<X, Wire, kCount>& q) {
  if (kMode != PassMode::apply) {
    store(of.wire, i, q.wire);
    if (of.residual != nullptr) store(of.residual, i, q.residual);
  }
  if (kMode == PassMode::delta) return;
  store(of.a, i, q.a);
  if (of.m != nullptr) store(of.m, i, q.m);
  if (of.kept != nullptr) store(of.kept, i, q.kept);
  store(of.x, i, q.x);
}

template <class X, class Wire, PassMode kMode>
__global__ void __launch_bounds__(kThreads, 2) pass_pieces(CudaArrays p, float groups, int64_t first) {
  const CudaPiece piece = p.pieces[first + blockIdx.x];
  const PassTensor tensor = p.tensors[piece.tensor];
  const PassPod pass = p.control->pass;
  const float bound = p.bounds[piece.tensor].bound;
  const int64_t flat = tensor.begin + piece.begin;
  const Arrays<X, Wire> of{static_cast<X*>(tensor.x) + piece.begin,
                           static_cast<Wire*>(p.memory.wire) + flat,
                           p.memory.anchor + flat,
                           at(p.memory.momentum, flat),
                           at(p.memory.kept, flat),
                           at(p.memory.residual, flat)};
  Sums sums;
  const auto pass_of = [&]<int kCount>(int64_t i, Packs<X, Wire, kCount>& q) {
    for (int k = 0; k < kCount; ++k) {
      Element e{widen(q.x.values[k]),    q.a.values[k],        q.m.values[k],     q.kept.values[k],
                widen(q.wire.values[k]), q.residual.values[k], of.kept != nullptr};
      step<Wire, kMode>(pass, bound, groups, e, sums);
      narrow(e.wire, &q.wire.values[k]);
      narrow(e.x, &q.x.values[k]);
      q.a.values[k] = e.a;
      q.m.values[k] = e.m;
      q.kept.values[k] = e.kept;
      q.residual.values[k] = e.residual;
    }
    put<kMode>(of, i, q);
  };
  // Two packs of each array are under way at a time.
  constexpr int64_t kStride = int64_t{kThreads} * kPerThread;
  const int64_t packed = of.is_packed() ? piece.count / kPerThread * kPerThread : 0;
  int64_t i = int64_t{threadIdx.x} * kPerThread;
  for (; i + kStride < packed; i += 2 * kStride) {
    auto here = fetch<kMode, kPerThread>(of, i), there = fetch<kMode, kPerThread>(of, i + kStride);
    pass_of(i, here);
    pass_of(i + kStride, there);
  }
  if (i < packed) {
    auto here = fetch<kMode, kPerThread>(of, i);
    pass_of(i, here);
  }
  for (int64_t k = packed + threadIdx.x; k < piece.count; k += kThreads) {
    auto one = fetch<kMode, 1>(of, k);
    pass_of(k, one);
  }
  const SumsPod total = block_sums({.m2 = sums.m2,
                                    .w2 = sums.w2,
                                    .v2 = sums.v2,
                                    .bad = static_cast<double>(sums.bad),
                                    .clipped = static_cast<double>(sums.clipped)});
  if (threadIdx.x == 0) p.parts[first + blockIdx.x] = total;
}

}  // namespace overlace::train
