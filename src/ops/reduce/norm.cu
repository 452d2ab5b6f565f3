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

/// The elements of a group of columns; `is_wide`: by one load or store, else one by one, none behind the end of the
/// row.
template <bool is_wide, class T, int kGroup>
__device__ Pack<T, kGroup> load_group(const T* row, int64_t col, int64_t cols) {
  if constexpr (is_wide) return *reinterpret_cast<const Pack<T, kGroup>*>(row + col);
  Pack<T, kGroup> out{};
#pragma unroll
  for (int j = 0; j < kGroup; ++j)
    if (col + j < cols) out.v[j] = row[col + j];
  return out;
}
template <bool is_wide, class T, int kGroup>
__device__ void store_group(T* row, int64_t col, int64_t cols, const Pack<T, kGroup>& values) {
  if constexpr (is_wide) {
    *reinterpret_cast<Pack<T, kGroup>*>(row + col) = values;
  } else {
#pragma unroll
    for (int j = 0; j < kGroup; ++j)
      if (col + j < cols) row[col + j] = values.v[j];
  }
}

/// A thread has the same columns whether loads are wide or not, so that sums have the same bits wherever arguments lie.
/// NOTE: plain loads, as out is written and read again here, by the same thread.
template <class Acc, class T, int kGroup, bool is_wide>
__global__ void __launch_bounds__(kThreads) norm_rows(const __grid_constant__ NormParams<T> p) {
  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    Acc squares = 0;
    for (int64_t col = threadIdx.x * kGroup; col < p.cols; col += kThreads * kGroup) {
      const auto sum = load_group<is_wide, T, kGroup>(p.sum + row * p.sum_pitch, col, p.cols);
      const auto residual = load_group<is_wide, T, kGroup>(p.residual + row * p.residual_pitch, col, p.cols);
      Pack<T, kGroup> out;
#pragma unroll
      for (int j = 0; j < kGroup; ++j) {
        out.v[j] = device::narrow<T>(device::widen(sum.v[j]) + device::widen(residual.v[j]));
        const Acc x = device::widen(out.v[j]);
        squares += x * x;
      }
      store_group<is_wide>(p.out + row * p.out_pitch, col, p.cols, out);
    }
    const Acc mean = block_sum(squares) / static_cast<Acc>(p.cols);
    const Acc scale = 1 / sqrt(mean + static_cast<Acc>(p.eps));
    for (int64_t col = threadIdx.x * kGroup; col < p.cols; col += kThreads * kGroup) {
      const auto out = load_group<is_wide, T, kGroup>(p.out + row * p.out_pitch, col, p.cols);
      const auto weight = load_group<is_wide, T, kGroup>(p.weight, col, p.cols);
      Pack<T, kGroup> normed;
#pragma unroll
      for (int j = 0; j < kGroup; ++j)
        normed.v[j] = device::narrow<T>(device::widen(out.v[j]) * scale * device::widen(weight.v[j]));
      store_group<is_wide>(p.normed + row * p.normed_pitch, col, p.cols, normed);
    }
  }
}

template <class Acc, class T>
cudaError_t launch_typed(const NormLaunch& a) {
  constexpr int kGroup = 16 / static_cast<int>(sizeof(T));
  bool is_wide = a.out.dim(1) % kGroup == 0 && reinterpret_cast<uintptr_t>(a.weight.data) % 16 == 0;
  for (const TensorView* t : {&a.sum, &a.residual, &a.out, &a.normed})
    is_wide =
        is_wide && reinterpret_cast<uintptr_t>(t->data) % 16 == 0 && (a.out.dim(0) == 1 || t->stride(0) % kGroup == 0);
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
  if (is_wide) {
    norm_rows<Acc, T, kGroup, true><<<blocks, kThreads, 0, stream>>>(p);
  } else {
    norm_rows<Acc, T, kGroup, false><<<blocks, kThreads, 0, stream>>>(p);
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
