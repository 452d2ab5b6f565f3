// split_k: the sums of two CTAs, each of half of K, become one tile.
#pragma once

#include "src/device/ptx/shared.cuh"
#include "src/gemm_core/hooks/plain.cuh"

namespace overlace::gemm_core {

/// A Reduce hook without loads. Warpgroup 0 of CTA 1 sends its sums to CTA 0, warpgroup 1 of CTA 0 to CTA 1, through
/// shared memory of the cluster; the same warpgroup there adds them to its own, rounds and stores its 64 rows: half of
/// a tile, or by turns a whole one. Sums of
/// two: the same bits in whichever order. Thread t sends what thread t holds: four values of all threads lie together.
struct AddHalf {
  static constexpr bool kReduces = true, kLoads = false;
  uint32_t parity = 0;

  __device__ __forceinline__ void start() {}
  __device__ __forceinline__ void begin() {}
  __device__ __forceinline__ void end() const {}
  template <class Config, class Item>
  __device__ __forceinline__ void add(Accumulators<Config>& sums, const Cta<Config>& cta, uint32_t group, Item,
                                      Ring<Config::kStages>&, Deadline& deadline) {
    constexpr int kFours = Config::kTileN / 8;
    constexpr uint32_t kPitch = 128 * 16;
    const uint32_t thread = threadIdx.x % 128, other = 1 - static_cast<uint32_t>(cta.k_in_cluster);
    const uint32_t half = cta.shared + Config::kShared.half + thread * 16;
    const uint32_t come = cta.shared + Config::kShared.come, taken = cta.shared + Config::kShared.taken;
    float(&mine)[Config::kTileN / 2] = sums[0];
    if (cta.stores(group)) {
      if (thread == 0) ptx::mbarrier_arrive_expect(come, Config::kSpec.half_bytes());
      wait_barrier(come, parity, deadline);
#pragma unroll
      for (int i = 0; i < kFours; ++i) {
        const float4 x = ptx::load_four(half + static_cast<uint32_t>(i) * kPitch);
        mine[i * 4] += x.x;
        mine[i * 4 + 1] += x.y;
        mine[i * 4 + 2] += x.z;
        mine[i * 4 + 3] += x.w;
      }
      __syncwarp();
      if (thread % 32 == 0) ptx::mbarrier_arrive_cluster(ptx::cluster_address(taken, other));
    } else {
      wait_barrier(taken, parity ^ 1, deadline);  // the tile before, by the other CTA
      const uint32_t to = ptx::cluster_address(half, other), there = ptx::cluster_address(come, other);
#pragma unroll
      for (int i = 0; i < kFours; ++i) {
        ptx::store_four_to(to + static_cast<uint32_t>(i) * kPitch,
                           {mine[i * 4], mine[i * 4 + 1], mine[i * 4 + 2], mine[i * 4 + 3]}, there);
      }
    }
    parity ^= 1;
  }
};

/// What a kernel reduces that has nothing of its own to add.
template <class Config>
using ReduceHalves = std::conditional_t<Config::kSplitK == 1, ReduceNone, AddHalf>;

/// Both halves of K where there are two, then `next`, another Reduce hook without loads, by those who store the tile.
template <class Config, class Next>
struct AddHalfThen {
  static_assert(Next::kReduces && !Next::kLoads);
  static constexpr bool kReduces = true, kLoads = false;
  Next next;
  ReduceHalves<Config> halves = {};

  __device__ __forceinline__ void start() { next.start(); }
  __device__ __forceinline__ void begin() {}
  __device__ __forceinline__ void end() const {}
  template <class Same, class Item>
  __device__ __forceinline__ void add(Accumulators<Same>& sums, const Cta<Same>& cta, uint32_t group, Item item,
                                      Ring<Same::kStages>& ring, Deadline& deadline) {
    if constexpr (Same::kSplitK > 1) {
      halves.template add<Same>(sums, cta, group, item, ring, deadline);
      if (!cta.stores(group)) return;
    }
    next.template add<Same>(sums, cta, group, item, ring, deadline);
  }
};

}  // namespace overlace::gemm_core
