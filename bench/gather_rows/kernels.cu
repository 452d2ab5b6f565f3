#include <cuda_runtime.h>

#include "bench/gather_rows/kernels.h"

namespace overlace::bench {
namespace {

constexpr int kThreads = 256, kCtas = 1024;

__device__ uint64_t mixed(uint64_t x) {
  x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdull;
  x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53ull;
  return x ^ (x >> 33);
}
__device__ uint32_t word_of(uint64_t place) { return static_cast<uint32_t>(mixed(place + 1)); }
__device__ int64_t first_of_thread() { return int64_t{blockIdx.x} * kThreads + threadIdx.x; }
__device__ int64_t step_of_grid() { return int64_t{gridDim.x} * kThreads; }

__global__ void fill_words(uint32_t* to, int64_t first, int64_t count) {
  for (int64_t i = first_of_thread(); i < count; i += step_of_grid()) to[i] = word_of(static_cast<uint64_t>(first + i));
}
__global__ void draw_ids(int64_t* to, int64_t count, uint64_t num_rows, uint64_t seed) {
  for (int64_t i = first_of_thread(); i < count; i += step_of_grid())
    to[i] = static_cast<int64_t>(mixed(seed * 0x9e3779b97f4a7c15ull + static_cast<uint64_t>(i)) % num_rows);
}
__global__ void count_wrong(const uint32_t* out, int64_t count, const int64_t* ids, int64_t row_words, int64_t first,
                            unsigned long long* wrong) {
  for (int64_t i = first_of_thread(); i < count; i += step_of_grid()) {
    const int64_t place = ids == nullptr ? first + i : ids[i / row_words] * row_words + i % row_words;
    if (out[i] != word_of(static_cast<uint64_t>(place))) atomicAdd(wrong, 1ull);
  }
}

}  // namespace

void launch_fill_words(uint32_t* to, int64_t first, int64_t count, void* cuda_stream) {
  fill_words<<<kCtas, kThreads, 0, static_cast<cudaStream_t>(cuda_stream)>>>(to, first, count);
}
void launch_draw_ids(int64_t* to, int64_t count, uint64_t num_rows, uint64_t seed, void* cuda_stream) {
  draw_ids<<<kCtas, kThreads, 0, static_cast<cudaStream_t>(cuda_stream)>>>(to, count, num_rows, seed);
}
void launch_count_wrong(const uint32_t* out, int64_t count, const int64_t* ids, int64_t row_words, int64_t first,
                        unsigned long long* wrong, void* cuda_stream) {
  count_wrong<<<kCtas, kThreads, 0, static_cast<cudaStream_t>(cuda_stream)>>>(out, count, ids, row_words, first, wrong);
}

}  // namespace overlace::bench
