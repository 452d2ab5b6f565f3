// Stores tiles of swapped operands: they are staged transposed, rows of a tile are columns of the result.
#pragma once

#include "src/device/ptx/tensor.cuh"
#include "src/ops/gemm_core/mainloop.cuh"

namespace overlace::ops::gemm_core {

struct StoreTransposed {
  static constexpr bool kGates = false;
  const CUtensorMap* c;  // (M, N)
  __device__ __forceinline__ void begin() {}
  __device__ __forceinline__ void store(const Tile&, int32_t row, int32_t col, uint32_t shared) {
    ptx::store_box(c, row, col, shared);
  }
};

}  // namespace overlace::ops::gemm_core
