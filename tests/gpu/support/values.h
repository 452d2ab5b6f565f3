// Operands on a GPU whose sums are exact, and a call that is captured and replayed.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "overlace/tensor.h"
#include "src/base/half.h"
#include "tests/gpu/support/gpu_ranks.h"

namespace overlace::test {

/// -1, 0 or 1: sums are exact in any order.
inline double value_of(int tensor, int64_t i, int64_t j) {
  uint64_t x = static_cast<uint64_t>(i) * 0x9e3779b97f4a7c15ull + static_cast<uint64_t>(j) * 0xc2b2ae3d27d4eb4full +
               static_cast<uint64_t>(tensor) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 29)) * 0x94d049bb133111ebull;
  return static_cast<double>((x >> 40) % 3) - 1;
}

/// A matrix of value(i, j) in memory of the rank.
template <class F>
TensorView made(GpuRank& gpu, int64_t rows, int64_t columns, DType dtype, F value) {
  std::vector<char> host(static_cast<size_t>(rows * columns) * dtype_bytes(dtype) + 16);
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j) base::store_element(host.data(), dtype, i * columns + j, value(i, j));
  char* out = gpu.device_array<char>(host.size());
  gpu.store(out, host.data(), host.size());
  return TensorView::contiguous(out, dtype, {rows, columns});
}

/// One call eagerly, then the same captured and replayed three times; `check` follows each replay, `spoil` goes before.
inline void check_replays(GpuRank& gpu, const std::function<void()>& call, const std::function<void()>& spoil,
                          const std::function<void()>& check) {
  call();
  gpu.wait();
  gpu.team.barrier();
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  ASSERT_EQ(cudaStreamBeginCapture(gpu.stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  call();
  ASSERT_EQ(cudaStreamEndCapture(gpu.stream, &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
  for (int replay = 0; replay < 3; ++replay) {
    spoil();
    ASSERT_EQ(cudaGraphLaunch(exec, gpu.stream), cudaSuccess);
    check();
  }
  gpu.team.barrier();
  EXPECT_CUDA(cudaGraphExecDestroy(exec));
  EXPECT_CUDA(cudaGraphDestroy(graph));
}

}  // namespace overlace::test
