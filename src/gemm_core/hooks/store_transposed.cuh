// Stores tiles of swapped operands: they are staged transposed, rows of a tile are columns of the result.
#pragma once

#include "src/device/ptx/tensor.cuh"
#include "src/gemm_core/mainloop.cuh"

namespace overlace::gemm_core {

struct StoreTransposed {
  static constexpr bool kGates = false;
  static constexpr int32_t kRowBytes = 128;  // of a token as staged: 64 columns
  const CUtensorMap* c;                      // (tokens that are stored, N), in boxes that begin with the first
  int32_t first_token;                       // of a tile, that is stored; negative: none is
  __device__ __forceinline__ void begin() {}
  /// NOTE: a box that begins before its tensor, which would clip as well, is an illegal instruction on Hopper.
  __device__ __forceinline__ void store(const Tile&, int32_t row, int32_t, uint32_t shared) {
    if (first_token >= 0) ptx::store_box(c, row, 0, shared + static_cast<uint32_t>(first_token * kRowBytes));
  }
};

}  // namespace overlace::gemm_core
