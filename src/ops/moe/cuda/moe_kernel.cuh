// A mixture-of-experts layer behind routing in one kernel: hooks on the mainloop, nothing else.
#pragma once

#include "src/gemm_core/run.cuh"
#include "src/ops/fused/grouped_kernel.cuh"
#include "src/ops/moe/cuda/move_rows.cuh"

namespace overlace::ops::moe {

/// Up items await the rows of their expert, which are there when those of all rows are that come in for it or an
/// earlier one; down items what the up items of the same rows give.
template <class Config>
struct WaitRows {
  static constexpr bool kWaits = true, kDrains = false;
  const MoeParams* m;
  int32_t arrived = 0;  // experts

  __device__ __forceinline__ void begin() {}
  template <class>
  __device__ __forceinline__ Source source(const GemmParams& p, const Tile& tile) const {
    return {is_second<Config>(p, tile.at) ? &m->gemm.second_a : &p.a, tile.row};
  }
  template <class>
  __device__ __forceinline__ void wait(const Tile& tile, int32_t k, Deadline& deadline) {
    if (k != 0) return;
    if (is_second<Config>(m->gemm, tile.at)) {
      await(m->flow.hidden + tile.at.m, m->hidden_tiles, deadline);
    } else {
      if (arrived > tile.at.shard) return;
      for (; arrived <= tile.at.shard; ++arrived)
        await(m->flow.arrived + arrived, static_cast<uint32_t>(m->flow.first_rows[arrived]), deadline);
    }
    ptx::fence_proxy_async();  // what others stored is read by bulk copies
  }
  __device__ __forceinline__ void end() const {}

 private:
  __device__ __forceinline__ static void await(const uint32_t* word, uint32_t count, Deadline& deadline) {
    wait_until([=] { return ptx::load_acquire_gpu(word) >= count; }, deadline);
  }
};

template <class Config>
struct StoreChained {
  static constexpr bool kGates = true;
  const ChainedParams* p;
  template <class Item>
  __device__ __forceinline__ bool is_gated(Item item) const {
    return !is_second<Config>(*p, item().at);
  }
  __device__ __forceinline__ void begin() {}
  __device__ __forceinline__ void store(const Tile& tile, int32_t row, int32_t col, uint32_t shared) {
    const bool second = is_second<Config>(*p, tile.at);
    ptx::store_box(second ? &p->second_c : &p->c, second ? col : col / 2, row, shared);
  }
};

/// Tells who awaits a tile that this warpgroup's part of it is stored.
template <class Config>
struct SignalTile {
  static constexpr bool kNeedsCompletion = true, kMayWait = true;
  const MoeParams* m;
  __device__ __forceinline__ void done(const Tile& tile) {
    ptx::fence_proxy_async();
    __threadfence();
    if (is_second<Config>(m->gemm, tile.at)) {
      atomicAdd(m->flow.ended + tile.at.shard - m->gemm.first_shard, 1);
    } else {
      atomicAdd(m->flow.hidden + tile.at.m, 1);
    }
  }
};

template <class Config>
__global__ __launch_bounds__(kThreads, 1) void sm90_moe(const __grid_constant__ MoeParams p) {
  run<Config>(p.gemm, Drawn{p.counter, p.flow.items, *p.flow.num_items}, WaitRows<Config>{&p},
              StoreChained<Config>{&p.gemm}, SignalTile<Config>{&p}, MoveRows<Config>{&p},
              ScaleRows{&p.gemm, p.row_weights});
}

}  // namespace overlace::ops::moe

#define OVERLACE_MOE_UNIT(name) OVERLACE_UNIT(overlace::ops::fused, moe, name, overlace::ops::moe::sm90_moe)
