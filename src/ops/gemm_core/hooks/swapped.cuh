// Hooks of tiles with swapped operands: rows of A are weights, which are there before anybody has computed anything.
#pragma once

#include "src/ops/gemm_core/hooks/plain.cuh"

namespace overlace::ops::gemm_core {

/// Asks for the first stages' weights while the grid before still runs. Into the L2, not into shared memory: so weights
/// that this grid writes are right, too.
struct PrefetchWeights : WaitNone {
  template <class Config>
  __device__ __forceinline__ void ahead(const GemmParams& p, const Place<Config>& place) {
    const int32_t row = tile_of(p, place, place.cluster).row;
    const int32_t blocks = p.k_blocks < Config::kStages ? p.k_blocks : Config::kStages;
    for (int32_t k = 0; k < blocks; ++k) ptx::prefetch_box(&p.a, k * kTileK, row);
  }
};

struct StoreTransposed {
  const CUtensorMap* c;  // (M, N)
  __device__ __forceinline__ void begin() {}
  __device__ __forceinline__ void store(const Tile&, int32_t row, int32_t col, uint32_t shared) {
    ptx::store_box(c, row, col, shared);
  }
};

}  // namespace overlace::ops::gemm_core
