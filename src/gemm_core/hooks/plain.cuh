// Hooks of a GEMM without communication: inputs are there, outputs go to C, nobody is told.
#pragma once

#include "src/device/ptx/tensor.cuh"
#include "src/gemm_core/mainloop.cuh"

namespace overlace::gemm_core {

struct WaitNone {
  static constexpr bool kWaits = false, kDrains = false;
  __device__ __forceinline__ void begin() {}
  template <class Config>
  __device__ __forceinline__ Source source(const GemmParams& p, const Tile& tile) const {
    return Config::kSpec.swaps_ab ? Source{&p.b, tile.col} : Source{&p.a, tile.row};
  }
  template <class Config>
  __device__ __forceinline__ void wait(const Tile&, int32_t, Deadline&) {}
  __device__ __forceinline__ void end() const {}
};

struct StorePlain {
  static constexpr bool kGates = false;
  const CUtensorMap* c;  // (M, N)
  __device__ __forceinline__ void begin() {}
  __device__ __forceinline__ void store(const Tile&, int32_t row, int32_t col, uint32_t shared) {
    ptx::store_box(c, col, row, shared);
  }
};

struct SignalNone {
  static constexpr bool kNeedsCompletion = false, kMayWait = false;
  __device__ __forceinline__ void done(const Tile&) {}
};

struct ReduceNone {
  static constexpr bool kReduces = false, kLoads = false;
  __device__ __forceinline__ void start() {}
  __device__ __forceinline__ void begin() {}
  __device__ __forceinline__ void end() const {}
};

struct PushNone {
  static constexpr bool kPushes = false, kMoves = false;
  template <class Config>
  __device__ __forceinline__ void run(const Cta<Config>&) {}
};

}  // namespace overlace::gemm_core
