// The ordered sum of rounded partial products, which results of ReduceScatter are compared with bit for bit.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace overlace::bench {

inline constexpr float kAlpha = 0.75F;  // of the variant with a bias

struct Partials {
  const __nv_bfloat16* own;    // (rows, N)
  const __nv_bfloat16* slots;  // (ranks, slot_rows, N), of the others
  int64_t slot_elements, count, n;
  int rank, size;
  const __nv_bfloat16* bias;
};
/// In fp32 and rank order, rounded once; `biased`: scaled, and the bias added. Both (rows, N). Nothing is queued where
/// the rank has no rows.
cudaError_t launch_sum_partials(cudaStream_t stream, const Partials& p, __nv_bfloat16* rounded, __nv_bfloat16* biased);

}  // namespace overlace::bench
