#include "tests/gpu/support/soak.h"

namespace overlace::test {
namespace {

/// Sum of four uniform values: about normal, variance 1/3.
__global__ void values(__nv_bfloat16* data, int64_t count, uint64_t seed) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const uint64_t bits = mixed(seed * 0x9e3779b97f4a7c15ull + static_cast<uint64_t>(i) + 1);
  float sum = -2;
  for (int part = 0; part < 4; ++part) sum += static_cast<float>(bits >> (16 * part) & 0xffff) / 65536.0f;
  data[i] = __float2bfloat16_rn(sum);
}

__global__ void differences(const uint16_t* data, const uint16_t* wanted, int64_t count, uint64_t* wrong) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count && data[i] != wanted[i]) atomicAdd(reinterpret_cast<unsigned long long*>(wrong), 1ull);
}

__global__ void delay(uint64_t ns) {
  uint64_t begin = 0, now = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - begin < ns);
}

unsigned blocks_of(int64_t count) { return static_cast<unsigned>((count + 255) / 256); }

}  // namespace

void fill_values(cudaStream_t stream, __nv_bfloat16* data, int64_t count, uint64_t seed) {
  values<<<blocks_of(count), 256, 0, stream>>>(data, count, seed);
}
void count_differences(cudaStream_t stream, const uint16_t* data, const uint16_t* wanted, int64_t count,
                       uint64_t* wrong) {
  differences<<<blocks_of(count), 256, 0, stream>>>(data, wanted, count, wrong);
}
void wait_ns(cudaStream_t stream, uint64_t ns) { delay<<<1, 1, 0, stream>>>(ns); }

}  // namespace overlace::test
