// What the soak test does on a GPU beside the calls of operators. Each queues on a stream.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace overlace::test {

/// splitmix64's finaliser.
constexpr uint64_t mixed(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

/// About normal, variance 1/3.
void fill_values(cudaStream_t stream, __nv_bfloat16* data, int64_t count, uint64_t seed);
/// *wrong += elements of `count` that differ.
void count_differences(cudaStream_t stream, const uint16_t* data, const uint16_t* wanted, int64_t count,
                       uint64_t* wrong);
void wait_ns(cudaStream_t stream, uint64_t ns);

}  // namespace overlace::test
