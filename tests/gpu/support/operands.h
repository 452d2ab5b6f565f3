// Kernels that make operands on the device, look at results and disturb; queued on a stream, capturable.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "overlace/dtype_pod.h"

namespace overlace::test {

/// splitmix64's finaliser.
constexpr uint64_t mixed(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

/// A problem whose sums are exact (exact.h), and this rank.
struct ExactPod {
  enum class Op { ag_gemm, gemm_rs, gemm_ar, ag_wgrad } op;
  int rank, ranks;
  int64_t m, n, k;
  int64_t first, mine;  // this rank's rows of M
  int64_t rows;         // of the result; it has n columns
  DType dtype;
  bool is_nk, has_bias;
  uint32_t sparse;  // of so many values one is -1 or 1 and the others 0: sums stay below 256, where bf16 is exact
  int64_t look_every;
};

/// Operands of the round behind *round, which is moved on.
cudaError_t launch_next_operands(cudaStream_t stream, const ExactPod& problem, void* a, void* b, void* bias,
                                 uint64_t* round);
/// *wrong += elements of `out` that differ from what the operands of the round give.
cudaError_t launch_look(cudaStream_t stream, const ExactPod& problem, const void* out, const uint64_t* round,
                        uint64_t* wrong);
/// fp32 values of a rank for an all-reduce, and a look at their sum: *wrong += elements that differ.
cudaError_t launch_addends(cudaStream_t stream, float* data, int64_t count, int rank, uint32_t round);
cudaError_t launch_look_at_sum(cudaStream_t stream, const float* data, int64_t count, int ranks, uint32_t round,
                               uint64_t* wrong);
/// Copies of `bytes` by a kernel that fills the GPU; a multiple of 16.
cudaError_t launch_heavy_copy(cudaStream_t stream, void* to, const void* from, uint64_t bytes);
/// Loads the kernels up to here on the current device: loading one beside a spinning kernel can wedge.
cudaError_t load_exact_kernels();

/// About normal, variance 1/3.
cudaError_t launch_values(cudaStream_t stream, __nv_bfloat16* data, int64_t count, uint64_t seed);
/// *wrong += elements of `count` that differ.
cudaError_t launch_count_differences(cudaStream_t stream, const uint16_t* data, const uint16_t* wanted, int64_t count,
                                     uint64_t* wrong);
cudaError_t launch_delay(cudaStream_t stream, uint64_t ns);

}  // namespace overlace::test
