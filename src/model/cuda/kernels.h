// Element-wise and attention kernels of a decoder layer on GPUs. All are queued on a stream and allocate nothing.
#pragma once

#include <cstdint>

#include "overlace/dtype_pod.h"
#include "src/base/status.h"
#include "src/model/weights_pod.h"

namespace overlace::model {

/// x (rows, cols) += delta where delta is given, rounded; then out = norm of each row of x where out is given; weight
/// (cols), bias (cols) or null. fp32 inside (fp64 for fp64).
struct AddNormLaunch {
  void* x = nullptr;
  const void* delta = nullptr;
  const void* weight = nullptr;
  const void* bias = nullptr;
  void* out = nullptr;
  int64_t rows = 0, cols = 0;
  double eps = 1e-5;
  bool subtract_mean = false;  // layer norm; else RMS norm
  DType dtype = DType::bf16;
};
base::Status launch_add_norm(const AddNormLaunch& args, void* stream);

/// In place on qkv (tokens, (heads + 2 kv_heads) head_dim): RMS norm of each q and k head (null weights: none), then
/// rotation by cos and sin (positions, head_dim / 2), fp32 (null: none). Position of token t: t % sequence.
struct RopeLaunch {
  void* qkv = nullptr;
  const void* q_norm = nullptr;
  const void* k_norm = nullptr;
  const float* cos = nullptr;
  const float* sin = nullptr;
  int64_t tokens = 0, sequence = 0, heads = 0, kv_heads = 0, head_dim = 0, pitch = 0;
  double eps = 1e-6;
  DType dtype = DType::bf16;
};
base::Status launch_rope(const RopeLaunch& args, void* stream);

/// Causal attention for what cuDNN does not take (fp32, odd head sizes): one warp per query and head, fp32 inside.
/// head_dim <= 256.
struct PlainAttentionLaunch {
  const void* q = nullptr;
  const void* k = nullptr;
  const void* v = nullptr;
  void* out = nullptr;
  int64_t batch = 1, sequence = 0, heads = 0, kv_heads = 0, head_dim = 0;
  int64_t pitch = 0, kv_pitch = 0, out_pitch = 0, window = 0;
  DType dtype = DType::bf16;
};
base::Status launch_attention(const PlainAttentionLaunch& args, void* stream);

/// out (rows, cols) = silu(in[:, :cols]) * in[:, cols:] with in (rows, 2 cols).
base::Status launch_swiglu(const void* in, void* out, int64_t rows, int64_t cols, DType dtype, void* stream);
enum class Pointwise { gelu_tanh, gelu_erf, relu };
/// out = f(in), n elements; may be in place.
base::Status launch_pointwise(Pointwise f, const void* in, void* out, int64_t n, DType dtype, void* stream);
/// Seeded weights or input, made on the device; the same bits as on the host.
base::Status launch_seeded(const SeededMatrix& m, void* out, int64_t rows, int64_t cols, int64_t pitch, DType dtype,
                           void* stream);
/// n elements between dtypes; fp64 fp32 fp16 bf16.
base::Status launch_convert(const void* in, DType from, void* out, DType to, int64_t n, void* stream);

}  // namespace overlace::model
