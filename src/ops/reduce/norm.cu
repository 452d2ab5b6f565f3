// Residual and RMSNorm behind a sum: a block takes a row, twice.
#include <cuda_runtime.h>

#include <algorithm>

#include "src/device/math/convert.cuh"
#include "src/ops/reduce/kernel.cuh"
#include "src/ops/reduce/launch.h"

namespace overlace::ops {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;

template <class T>
struct NormParams {
  const T *sum, *residual, *weight;
  T *out, *normed;  // out may be sum
  int64_t sum_pitch, residual_pitch, out_pitch, normed_pitch, rows, cols;
  double eps;
};

/// The sum over all threads of the block, in one order; all get it.
template <class Acc>
__device__ Acc block_sum(Acc value) {
  __shared__ Acc of_warp[kWarps];
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffU, value, step);
  __syncthreads();  // the row before has been read
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
  __syncthreads();
  Acc total = 0;
  for (int warp = 0; warp < kWarps; ++warp) total += of_warp[warp];
  return total;
}

/// NOTE: plain loads, as out is written and read again here, by the same thread.
template <class Acc, class T, int kVector>
__global__ void __launch_bounds__(kThreads) norm_rows(const __grid_constant__ NormParams<T> p) {
  using Elements = Pack<T, kVector>;
  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    Acc squares = 0;
    for (int64_t col = threadIdx.x * kVector; col < p.cols; col += kThreads * kVector) {
      const auto sum = *reinterpret_cast<const Elements*>(p.sum + row * p.sum_pitch + col);
      const auto residual = *reinterpret_cast<const Elements*>(p.residual + row * p.residual_pitch + col);
      Elements out;
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        out.v[j] = device::narrow<T>(device::widen(sum.v[j]) + device::widen(residual.v[j]));
        const Acc x = device::widen(out.v[j]);
        squares += x * x;
      }
      *reinterpret_cast<Elements*>(p.out + row * p.out_pitch + col) = out;
    }
    const Acc mean = block_sum(squares) / static_cast<Acc>(p.cols);
    const Acc scale = 1 / sqrt(mean + static_cast<Acc>(p.eps));
    for (int64_t col = threadIdx.x * kVector; col < p.cols; col += kThreads * kVector) {
      const auto out = *reinterpret_cast<const Elements*>(p.out + row * p.out_pitch + col);
      const auto weight = *reinterpret_cast<const Elements*>(p.weight + col);
      Elements normed;
#pragma unroll
      for (int j = 0; j < kVector; ++j)
        normed.v[j] = device::narrow<T>(device::widen(out.v[j]) * scale * device::widen(weight.v[j]));
      *reinterpret_cast<Elements*>(p.normed + row * p.normed_pitch + col) = normed;
    }
  }
}

template <class Acc, class T>
cudaError_t launch_typed(const NormLaunch& a) {
  constexpr int kVector = 16 / static_cast<int>(sizeof(T));
  bool is_vector = a.out.dim(1) % kVector == 0 && reinterpret_cast<uintptr_t>(a.weight.data) % 16 == 0;
  for (const TensorView* t : {&a.sum, &a.residual, &a.out, &a.normed})
    is_vector = is_vector && reinterpret_cast<uintptr_t>(t->data) % 16 == 0 && t->stride(0) % kVector == 0;
  const NormParams<T> p = {.sum = static_cast<const T*>(a.sum.data),
                           .residual = static_cast<const T*>(a.residual.data),
                           .weight = static_cast<const T*>(a.weight.data),
                           .out = static_cast<T*>(a.out.data),
                           .normed = static_cast<T*>(a.normed.data),
                           .sum_pitch = a.sum.stride(0),
                           .residual_pitch = a.residual.stride(0),
                           .out_pitch = a.out.stride(0),
                           .normed_pitch = a.normed.stride(0),
                           .rows = a.out.dim(0),
                           .cols = a.out.dim(1),
                           .eps = a.eps};
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(p.rows, 132 * 8));
  auto* stream = static_cast<cudaStream_t>(a.cuda_stream);
  if (is_vector) {
    norm_rows<Acc, T, kVector><<<blocks, kThreads, 0, stream>>>(p);
  } else {
    norm_rows<Acc, T, 1><<<blocks, kThreads, 0, stream>>>(p);
  }
  return cudaGetLastError();
}

}  // namespace

base::Status launch_norm(const NormLaunch& a) {
  if (a.out.numel() == 0) return {};
  cudaError_t e = cudaSuccess;
  switch (a.out.dtype) {
    case DType::fp64:
      e = launch_typed<double, double>(a);
      break;
    case DType::fp32:
      e = launch_typed<float, float>(a);
      break;
    case DType::fp16:
      e = launch_typed<float, __half>(a);
      break;
    case DType::bf16:
      e = launch_typed<float, __nv_bfloat16>(a);
      break;
    default:
      return base::error(Errc::not_supported, "norm: no kernel for {}, wanted fp64, fp32, fp16 or bf16",
                         dtype_name(a.out.dtype));
  }
  if (e != cudaSuccess) return base::error(Errc::cuda, "norm kernel launch: {}", cudaGetErrorString(e));
  return {};
}

}  // namespace overlace::ops
