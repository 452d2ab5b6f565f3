// Conversions between the floating types in memory and those that compute.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace overlace::device {

/// The type that computes on T: fp32, for fp64 itself. Exact.
__device__ __forceinline__ float widen(float v) { return v; }
__device__ __forceinline__ double widen(double v) { return v; }
__device__ __forceinline__ float widen(__half v) { return __half2float(v); }
__device__ __forceinline__ float widen(__nv_bfloat16 v) { return __bfloat162float(v); }

/// One rounding, to nearest even.
template <class T>
__device__ __forceinline__ T narrow(float v) {
  return static_cast<T>(v);
}
template <class T>
__device__ __forceinline__ T narrow(double v) {
  return static_cast<T>(v);
}
template <>
__device__ __forceinline__ __half narrow<__half>(float v) {
  return __float2half_rn(v);
}
template <>
__device__ __forceinline__ __half narrow<__half>(double v) {
  return __double2half(v);
}
template <>
__device__ __forceinline__ __nv_bfloat16 narrow<__nv_bfloat16>(float v) {
  return __float2bfloat16_rn(v);
}
template <>
__device__ __forceinline__ __nv_bfloat16 narrow<__nv_bfloat16>(double v) {
  return __double2bfloat16(v);
}

}  // namespace overlace::device
