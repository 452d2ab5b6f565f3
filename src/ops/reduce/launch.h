// The reduction of GEMM+RS and GEMM+AR on GPUs: sum of sources in source order, bias once, one rounding; and the norm
// behind it.
#pragma once

#include "overlace/tensor.h"
#include "src/base/status.h"

namespace overlace::ops {

inline constexpr int kMaxReduceSources = 16;

/// dst (rows, cols) = sum over i of sources[i] (rows, cols) + bias (cols). Sums in fp32 (fp64 for fp64) in the order
/// given. Rows are contiguous in themselves; pitches are free. Queued on `cuda_stream`; nothing is allocated.
struct ReduceLaunch {
  const TensorView* sources = nullptr;  // alike in shape and dtype: fp64 | fp32 | fp16 | bf16
  int count = 0;                        // 1..kMaxReduceSources
  TensorView bias;                      // dtype of sources or of dst, or undefined
  TensorView dst;  // (rows, cols), gated: (rows, cols / 2); dtype of the sources; fp32 of 16 bits; any of these of fp32
  bool is_gated = false;  // swiglu of column 2i and the next, before the rounding; sources are aligned to
                          // pairs
  void* cuda_stream = nullptr;
};
base::Status launch_reduce(const ReduceLaunch& args);

/// out (rows, cols) = sum + residual, rounded; normed = out / sqrt(mean of the row's out^2 + eps) * weight (cols), in
/// fp32 (fp64 for fp64), rounded once. All of one dtype, fp64 | fp32 | fp16 | bf16; rows are contiguous in themselves,
/// pitches are free. out may be sum. Queued on `cuda_stream`; nothing is allocated.
struct NormLaunch {
  TensorView sum, residual, weight, out, normed;
  double eps = 0;
  void* cuda_stream = nullptr;
};
base::Status launch_norm(const NormLaunch& args);

}  // namespace overlace::ops
