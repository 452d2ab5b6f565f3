// Stores tiles of swapped operands: they are staged transposed, rows of a tile are columns of the result.
#pragma once

#include "src/device/ptx/tensor.cuh"
#include "src/ops/gemm_core/mainloop.cuh"

namespace overlace::ops::gemm_core {

struct StoreTransposed {
  static constexpr bool kGates = false;
  const CUtensorMap* c;  // (tokens, N); others than its own are clipped
  int32_t first_token;
  __device__ __forceinline__ void begin() {}
  __device__ __forceinline__ void store(const Tile&, int32_t row, int32_t col, uint32_t shared) {
    ptx::store_box(c, row, col - first_token, shared);
  }
};

}  // namespace overlace::ops::gemm_core
