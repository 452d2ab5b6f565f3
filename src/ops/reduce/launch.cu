#include <cuda_runtime.h>

#include <algorithm>

#include "src/ops/reduce/kernel.cuh"
#include "src/ops/reduce/launch.h"

namespace overlace::ops {
namespace {

template <class T>
int64_t pitch_of(const TensorView& t) {
  return t.ndim >= 2 ? t.stride(0) : t.numel();
}

template <class Acc, class Src, class Bias, class Dst, bool kGated>
cudaError_t launch_columns(const ReduceLaunch& a) {
  ReduceParams<Src, Bias, Dst> p{};
  p.count = a.count;
  p.rows = a.dst.ndim >= 2 ? a.dst.dim(0) : 1;
  constexpr int kPair = kGated ? 2 : 1;
  p.cols = kPair * (a.dst.ndim >= 2 ? a.dst.dim(1) : a.dst.numel());
  p.dst = static_cast<Dst*>(a.dst.data);
  p.dst_pitch = pitch_of<Dst>(a.dst);
  p.bias = static_cast<const Bias*>(a.bias.data);
  constexpr int kVector = 16 / static_cast<int>(std::max(sizeof(Src), sizeof(Dst)));
  const auto fits = [](const void* data, int64_t pitch, size_t element, int count) {
    const size_t unit = element * static_cast<size_t>(count);
    return reinterpret_cast<uintptr_t>(data) % unit == 0 && static_cast<size_t>(pitch) * element % unit == 0;
  };
  bool vector = p.cols % kVector == 0 && fits(p.dst, p.dst_pitch, sizeof(Dst), kVector / kPair);
  for (int s = 0; s < a.count; ++s) {
    p.src[s] = static_cast<const Src*>(a.sources[s].data);
    p.src_pitch[s] = pitch_of<Src>(a.sources[s]);
    vector = vector && fits(p.src[s], p.src_pitch[s], sizeof(Src), kVector);
    if (!fits(p.src[s], p.src_pitch[s], sizeof(Src), kPair)) return cudaErrorMisalignedAddress;
  }
  const int64_t work = p.rows * p.cols / (vector ? kVector : kPair);
  const unsigned blocks = static_cast<unsigned>(std::clamp<int64_t>((work + 255) / 256, 1, 132 * 8));
  auto* stream = static_cast<cudaStream_t>(a.cuda_stream);
  if (vector) {
    reduce_rows<Acc, Src, Bias, Dst, kVector, kGated><<<blocks, 256, 0, stream>>>(p);
  } else {
    reduce_rows<Acc, Src, Bias, Dst, kPair, kGated><<<blocks, 256, 0, stream>>>(p);
  }
  return cudaGetLastError();
}

template <class Acc, class Src, class Bias, class Dst>
cudaError_t launch_typed(const ReduceLaunch& a) {
  return a.is_gated ? launch_columns<Acc, Src, Bias, Dst, true>(a) : launch_columns<Acc, Src, Bias, Dst, false>(a);
}

template <class Src, class Dst>
cudaError_t launch_bias(const ReduceLaunch& a) {
  if (!a.bias.defined() || a.bias.dtype == a.dst.dtype) return launch_typed<float, Src, Dst, Dst>(a);
  return launch_typed<float, Src, Src, Dst>(a);
}

/// Sources of 16 bits become their own type or fp32, which no operator asks otherwise.
template <class Src>
cudaError_t launch_narrow(const ReduceLaunch& a) {
  return a.dst.dtype == DType::fp32 ? launch_bias<Src, float>(a) : launch_bias<Src, Src>(a);
}

cudaError_t launch_wide(const ReduceLaunch& a) {
  switch (a.dst.dtype) {
    case DType::fp32:
      return launch_bias<float, float>(a);
    case DType::fp16:
      return launch_bias<float, __half>(a);
    default:
      return launch_bias<float, __nv_bfloat16>(a);
  }
}

}  // namespace

base::Status launch_reduce(const ReduceLaunch& a) {
  OVERLACE_ASSERT(a.count >= 1 && a.count <= kMaxReduceSources);
  if (a.dst.numel() == 0) return {};
  const DType from = a.sources[0].dtype, to = a.dst.dtype;
  if (dtype_bytes(from) == 2 && to != from && to != DType::fp32) {
    return base::error(Errc::not_supported, "reduce: no kernel from {} to {}", dtype_name(from), dtype_name(to));
  }
  if (a.bias.defined() && a.bias.dtype != to && a.bias.dtype != from) {
    return base::error(Errc::not_supported, "reduce: bias is {}, wanted {} or {}", dtype_name(a.bias.dtype),
                       dtype_name(from), dtype_name(to));
  }
  cudaError_t e = cudaSuccess;
  switch (from) {
    case DType::fp64:
      e = launch_typed<double, double, double, double>(a);
      break;
    case DType::fp32:
      e = launch_wide(a);
      break;
    case DType::fp16:
      e = launch_narrow<__half>(a);
      break;
    case DType::bf16:
      e = launch_narrow<__nv_bfloat16>(a);
      break;
    default:
      return base::error(Errc::not_supported, "reduce: dtype {} has no kernel", dtype_name(from));
  }
  if (e != cudaSuccess) return base::error(Errc::cuda, "reduce kernel launch: {}", cudaGetErrorString(e));
  return {};
}

}  // namespace overlace::ops
