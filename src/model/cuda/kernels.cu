#include <cuda_runtime.h>

#include <algorithm>

#include "src/device/math/convert.cuh"
#include "src/model/cuda/kernels.h"

namespace overlace::model {
namespace {

using device::narrow;
using device::widen;

/// Acc<T> is float, or double for the fp64 oracle.

template <class T>
struct AccOf {
  using type = float;
};
template <>
struct AccOf<double> {
  using type = double;
};
template <class T>
using Acc = typename AccOf<T>::type;

template <class A>
__device__ A warp_sum(A v) {
#pragma unroll
  for (int lane = 16; lane > 0; lane /= 2) v += __shfl_xor_sync(0xffffffffu, v, lane);
  return v;
}

/// Sum over a block of 256 threads, in a fixed order; `scratch` has 8 cells.
template <class A>
__device__ A block_sum(A v, A* scratch) {
  v = warp_sum(v);
  __syncthreads();  // the previous use of scratch is over
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = v;
  __syncthreads();
  A sum = 0;
  for (int i = 0; i < 8; ++i) sum += scratch[i];
  return sum;
}

__device__ float reciprocal_sqrt(float v) { return rsqrtf(v); }
__device__ double reciprocal_sqrt(double v) { return rsqrt(v); }

// ---- residual and norm: one block per row ----

template <class T>
__global__ void __launch_bounds__(256) add_norm_rows(const AddNormLaunch p) {
  using A = Acc<T>;
  __shared__ A scratch[8];
  T* x = static_cast<T*>(p.x) + blockIdx.x * p.cols;
  if (p.delta != nullptr) {  // each thread reads below only what it wrote here
    const T* delta = static_cast<const T*>(p.delta) + blockIdx.x * p.cols;
    for (int64_t i = threadIdx.x; i < p.cols; i += 256) x[i] = narrow<T>(widen(x[i]) + widen(delta[i]));
  }
  if (p.out == nullptr) return;
  A mean = 0;
  if (p.subtract_mean) {
    A sum = 0;
    for (int64_t i = threadIdx.x; i < p.cols; i += 256) sum += widen(x[i]);
    mean = block_sum(sum, scratch) / static_cast<A>(p.cols);
  }
  A square = 0;
  for (int64_t i = threadIdx.x; i < p.cols; i += 256) {
    const A d = widen(x[i]) - mean;
    square += d * d;
  }
  const A scale = reciprocal_sqrt(block_sum(square, scratch) / static_cast<A>(p.cols) + static_cast<A>(p.eps));
  const T* weight = static_cast<const T*>(p.weight);
  const T* bias = static_cast<const T*>(p.bias);
  T* out = static_cast<T*>(p.out) + blockIdx.x * p.cols;
  for (int64_t i = threadIdx.x; i < p.cols; i += 256) {
    A v = (widen(x[i]) - mean) * scale * widen(weight[i]);
    if (bias != nullptr) v += widen(bias[i]);
    out[i] = narrow<T>(v);
  }
}

// ---- q/k norm and rotation: one warp per (token, q or k head), head_dim <= 256 ----

template <class T>
__global__ void __launch_bounds__(128) rope_heads(const RopeLaunch p) {
  using A = Acc<T>;
  const int64_t heads = p.heads + p.kv_heads;
  const int64_t unit = blockIdx.x * int64_t{4} + threadIdx.x / 32;
  if (unit >= p.tokens * heads) return;
  const int64_t token = unit / heads, head = unit % heads;
  const int lane = threadIdx.x % 32, half = static_cast<int>(p.head_dim / 2);
  T* x = static_cast<T*>(p.qkv) + token * p.pitch + head * p.head_dim;
  const T* weight = static_cast<const T*>(head < p.heads ? p.q_norm : p.k_norm);
  A scale = 1;
  if (weight != nullptr) {
    A square = 0;
    for (int i = lane; i < p.head_dim; i += 32) square += widen(x[i]) * widen(x[i]);
    scale = reciprocal_sqrt(warp_sum(square) / static_cast<A>(p.head_dim) + static_cast<A>(p.eps));
  }
  const int64_t position = token % p.sequence;
  for (int i = lane; i < half; i += 32) {  // pairs (i, i + half), as Hugging Face rotates
    A a = widen(x[i]), b = widen(x[i + half]);
    if (weight != nullptr) {
      a = a * scale * widen(weight[i]);
      b = b * scale * widen(weight[i + half]);
    }
    if (p.cos != nullptr) {
      const A c = p.cos[position * half + i], s = p.sin[position * half + i];
      const A rotated = a * c - b * s;
      b = b * c + a * s;
      a = rotated;
    }
    x[i] = narrow<T>(a);
    x[i + half] = narrow<T>(b);
  }
}

// ---- plain causal attention: one warp per (query, head), online softmax ----

// Four CTAs on an SM leave enough registers for fp64, which ptxas would spill on 10.0 otherwise.
template <class T>
__global__ void __launch_bounds__(128, 4) attention_rows(const PlainAttentionLaunch p) {
  using A = Acc<T>;
  constexpr int kPerLane = 8;  // head_dim <= 256
  const int64_t unit = blockIdx.x * int64_t{4} + threadIdx.x / 32;
  if (unit >= p.batch * p.sequence * p.heads) return;
  const int lane = threadIdx.x % 32;
  const int64_t head = unit % p.heads, row = unit / p.heads;
  const int64_t position = row % p.sequence, first_row = row - position;
  const int64_t kv_head = head / (p.heads / p.kv_heads);
  const T* q = static_cast<const T*>(p.q) + row * p.pitch + head * p.head_dim;
  const A scale = reciprocal_sqrt(static_cast<A>(p.head_dim));
  A query[kPerLane], sum[kPerLane];
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int64_t d = lane + 32 * i;
    query[i] = d < p.head_dim ? widen(q[d]) * scale : A(0);
    sum[i] = 0;
  }
  A largest = -1e30f, total = 0;
  const int64_t begin = p.window > 0 ? max(int64_t{0}, position - p.window + 1) : 0;
  for (int64_t j = begin; j <= position; ++j) {
    const T* k = static_cast<const T*>(p.k) + (first_row + j) * p.kv_pitch + kv_head * p.head_dim;
    const T* v = static_cast<const T*>(p.v) + (first_row + j) * p.kv_pitch + kv_head * p.head_dim;
    A dot = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int64_t d = lane + 32 * i;
      if (d < p.head_dim) dot += query[i] * widen(k[d]);
    }
    dot = warp_sum(dot);
    const A next = max(largest, dot), shrink = exp(largest - next), weight = exp(dot - next);
    total = total * shrink + weight;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int64_t d = lane + 32 * i;
      if (d < p.head_dim) sum[i] = sum[i] * shrink + weight * widen(v[d]);
    }
    largest = next;
  }
  T* out = static_cast<T*>(p.out) + row * p.out_pitch + head * p.head_dim;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int64_t d = lane + 32 * i;
    if (d < p.head_dim) out[d] = narrow<T>(sum[i] / total);
  }
}

// ---- element-wise ----

template <class A>
__device__ A apply(Pointwise f, A x) {
  switch (f) {
    case Pointwise::gelu_tanh:
      return A(0.5) * x * (A(1) + tanh(A(0.7978845608028654) * (x + A(0.044715) * x * x * x)));
    case Pointwise::gelu_erf:
      return A(0.5) * x * (A(1) + erf(x * A(0.7071067811865476)));
    default:
      return x > A(0) ? x : A(0);
  }
}

template <class T>
__global__ void __launch_bounds__(256) swiglu_rows(const T* in, T* out, int64_t rows, int64_t cols) {
  using A = Acc<T>;
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    for (int64_t col = threadIdx.x; col < cols; col += 256) {
      const A gate = widen(in[row * 2 * cols + col]), up = widen(in[row * 2 * cols + cols + col]);
      out[row * cols + col] = narrow<T>(gate / (A(1) + exp(-gate)) * up);
    }
  }
}

template <class T>
__global__ void __launch_bounds__(256) pointwise(Pointwise f, const T* in, T* out, int64_t n) {
  for (int64_t i = blockIdx.x * int64_t{256} + threadIdx.x; i < n; i += gridDim.x * int64_t{256}) {
    out[i] = narrow<T>(apply<Acc<T>>(f, widen(in[i])));
  }
}

template <class T>
__global__ void __launch_bounds__(256) seeded(SeededMatrix m, T* out, int64_t rows, int64_t cols, int64_t pitch) {
  for (int64_t i = blockIdx.x * int64_t{256} + threadIdx.x; i < rows * cols; i += gridDim.x * int64_t{256}) {
    const int64_t row = i / cols, col = i - row * cols;
    out[row * pitch + col] = narrow<T>(seeded_value(m, row_key(m.key, m.first_row + row), col));
  }
}

template <class From, class To>
__global__ void __launch_bounds__(256) convert(const From* in, To* out, int64_t n) {
  for (int64_t i = blockIdx.x * int64_t{256} + threadIdx.x; i < n; i += gridDim.x * int64_t{256}) {
    out[i] = narrow<To>(widen(in[i]));
  }
}

unsigned blocks_for(int64_t n) { return static_cast<unsigned>(std::clamp<int64_t>((n + 255) / 256, 1, 132 * 8)); }

/// Calls f with a value of the element type; not_supported for others.
template <class F>
base::Status with_type(DType dtype, const char* kernel, F f) {
  switch (dtype) {
    case DType::fp64:
      f(double{});
      break;
    case DType::fp32:
      f(float{});
      break;
    case DType::fp16:
      f(__half{});
      break;
    case DType::bf16:
      f(__nv_bfloat16{});
      break;
    default:
      return base::error(Errc::not_supported, "{}: dtype {} has no kernel", kernel, dtype_name(dtype));
  }
  if (cudaError_t e = cudaGetLastError(); e != cudaSuccess) {
    return base::error(Errc::cuda, "{} kernel: {}", kernel, cudaGetErrorString(e));
  }
  return {};
}

cudaStream_t cuda(void* stream) { return static_cast<cudaStream_t>(stream); }

}  // namespace

base::Status launch_add_norm(const AddNormLaunch& p, void* stream) {
  if (p.rows == 0) return {};
  return with_type(p.dtype, "add_norm", [&](auto zero) {
    add_norm_rows<decltype(zero)><<<static_cast<unsigned>(p.rows), 256, 0, cuda(stream)>>>(p);
  });
}

base::Status launch_rope(const RopeLaunch& p, void* stream) {
  const int64_t units = p.tokens * (p.heads + p.kv_heads);
  if (units == 0) return {};
  return with_type(p.dtype, "rope", [&](auto zero) {
    rope_heads<decltype(zero)><<<static_cast<unsigned>((units + 3) / 4), 128, 0, cuda(stream)>>>(p);
  });
}

base::Status launch_attention(const PlainAttentionLaunch& p, void* stream) {
  if (p.head_dim > 256)
    return base::error(Errc::not_supported, "attention: head_dim {}, wanted at most 256", p.head_dim);
  const int64_t units = p.batch * p.sequence * p.heads;
  if (units == 0) return {};
  return with_type(p.dtype, "attention", [&](auto zero) {
    attention_rows<decltype(zero)><<<static_cast<unsigned>((units + 3) / 4), 128, 0, cuda(stream)>>>(p);
  });
}

base::Status launch_swiglu(const void* in, void* out, int64_t rows, int64_t cols, DType dtype, void* stream) {
  if (rows * cols == 0) return {};
  return with_type(dtype, "swiglu", [&](auto zero) {
    using T = decltype(zero);
    swiglu_rows<T>
        <<<blocks_for(rows * 256), 256, 0, cuda(stream)>>>(static_cast<const T*>(in), static_cast<T*>(out), rows, cols);
  });
}

base::Status launch_pointwise(Pointwise f, const void* in, void* out, int64_t n, DType dtype, void* stream) {
  if (n == 0) return {};
  return with_type(dtype, "pointwise", [&](auto zero) {
    using T = decltype(zero);
    pointwise<T><<<blocks_for(n), 256, 0, cuda(stream)>>>(f, static_cast<const T*>(in), static_cast<T*>(out), n);
  });
}

base::Status launch_seeded(const SeededMatrix& m, void* out, int64_t rows, int64_t cols, int64_t pitch, DType dtype,
                           void* stream) {
  if (rows * cols == 0) return {};
  return with_type(dtype, "seeded", [&](auto zero) {
    using T = decltype(zero);
    seeded<T><<<blocks_for(rows * cols), 256, 0, cuda(stream)>>>(m, static_cast<T*>(out), rows, cols, pitch);
  });
}

base::Status launch_convert(const void* in, DType from, void* out, DType to, int64_t n, void* stream) {
  if (n == 0) return {};
  base::Status inner;
  OVERLACE_TRY(with_type(from, "convert", [&](auto from_zero) {
    using From = decltype(from_zero);
    (void)(inner = with_type(to, "convert", [&](auto to_zero) {
             using To = decltype(to_zero);
             convert<From, To>
                 <<<blocks_for(n), 256, 0, cuda(stream)>>>(static_cast<const From*>(in), static_cast<To*>(out), n);
           }));
  }));
  return inner;
}

}  // namespace overlace::model
