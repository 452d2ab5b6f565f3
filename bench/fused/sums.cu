#include "bench/fused/sums.cuh"
#include "src/base/ceil_div_pod.h"

namespace overlace::bench {
namespace {

constexpr unsigned kBlock = 256;

__global__ void sum_partials(const Partials p, __nv_bfloat16* rounded, __nv_bfloat16* biased) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= p.count) return;
  float sum = -0.0f;
  for (int r = 0; r < p.size; ++r) sum += static_cast<float>(r == p.rank ? p.own[i] : p.slots[r * p.slot_elements + i]);
  rounded[i] = __float2bfloat16_rn(sum);
  biased[i] = __float2bfloat16_rn(__fadd_rn(__fmul_rn(sum, kAlpha), static_cast<float>(p.bias[i % p.n])));
}

}  // namespace

cudaError_t launch_sum_partials(cudaStream_t stream, const Partials& p, __nv_bfloat16* rounded, __nv_bfloat16* biased) {
  if (p.count == 0) return cudaSuccess;
  const auto blocks = static_cast<unsigned>(base::ceil_div(p.count, kBlock));
  sum_partials<<<blocks, kBlock, 0, stream>>>(p, rounded, biased);
  return cudaGetLastError();
}

}  // namespace overlace::bench
