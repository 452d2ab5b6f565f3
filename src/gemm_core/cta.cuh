// A CTA of the kernel: what it was compiled for, its place in the grid and what lies where in its shared memory.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "src/device/ptx/barrier.cuh"
#include "src/device/ptx/cluster.cuh"
#include "src/gemm_core/config.h"
#include "src/gemm_core/wait.cuh"

namespace overlace::gemm_core {

template <ConfigSpec kSpec_>
struct Config {
  static_assert(is_valid(kSpec_));
  static constexpr ConfigSpec kSpec = kSpec_;
  static constexpr SharedLayout kShared = shared_layout(kSpec);
  using Element = std::conditional_t<kSpec.dtype == DType::bf16, __nv_bfloat16, __half>;
  static constexpr int kTileM = kSpec.tile_m, kTileN = kSpec.tile_n, kStages = kSpec.stages;
  static constexpr int kClusterM = kSpec.cluster_m, kClusterN = kSpec.cluster_n, kCluster = kSpec.cluster();
  static constexpr int kSplitK = kSpec.split_k, kSharing = kClusterM * kClusterN;  // CTAs that share loads
  static constexpr int kGroups = kSpec.groups_per_tile, kPingPong = kSpec.pingpong();
  static constexpr int kBlocksM = kTileM / 64 / kGroups;  // of 64 rows, per consumer warpgroup
  static constexpr bool kATransposed = kSpec.groups_k, kBTransposed = kSpec.b_major == BMajor::n;
};

/// This CTA: shared memory by 32-bit address, number in the cluster, clusters of the grid.
template <class Config>
struct Cta {
  uint32_t shared;  // multiple of 1024
  int32_t cluster, num_clusters;
  int32_t m_in_cluster, n_in_cluster, k_in_cluster;

  /// This CTA's tiles that a consumer warpgroup takes: the first, and from one to the next.
  __device__ int32_t first_tile(uint32_t group) const {
    return cluster + (Config::kPingPong == 1 ? 0 : static_cast<int32_t>(group) * num_clusters);
  }
  __device__ int32_t tile_step() const { return Config::kPingPong * num_clusters; }
  /// First row of a consumer warpgroup in its tile.
  __device__ static int32_t first_row(uint32_t group) {
    return static_cast<int32_t>(group) % Config::kGroups * Config::kBlocksM * 64;
  }
  /// Whether this consumer warpgroup has results. Halves of K meet at the warpgroup with the CTA's number.
  __device__ bool stores(uint32_t group) const {
    return Config::kSplitK == 1 || group == static_cast<uint32_t>(k_in_cluster);
  }
  __device__ uint32_t a(uint32_t stage) const { return shared + stage * Config::kSpec.a_bytes(); }
  __device__ uint32_t b(uint32_t stage) const { return shared + Config::kShared.b + stage * Config::kSpec.b_bytes(); }
  /// Box i of stage_boxes() of a stage that holds no operands.
  __device__ uint32_t box(uint32_t stage, int32_t i) const {
    constexpr auto kInA = static_cast<int32_t>(Config::kSpec.a_bytes() / Config::kSpec.store_bytes());
    return (i < kInA ? a(stage) : b(stage) - Config::kSpec.a_bytes()) +
           static_cast<uint32_t>(i) * Config::kSpec.store_bytes();
  }
  __device__ uint32_t full(uint32_t stage) const { return shared + Config::kShared.full + stage * 8; }
  __device__ uint32_t empty(uint32_t stage) const { return shared + Config::kShared.empty + stage * 8; }
  /// Counts: items whose numbers the load thread has told, waits that the watching warp has over, items that it has
  /// looked at, parts whose numbers the pushing warps know.
  __device__ uint32_t announced() const { return shared + Config::kShared.words; }
  __device__ uint32_t watched() const { return shared + Config::kShared.words + 4; }
  __device__ uint32_t looked() const { return shared + Config::kShared.words + 8; }
  __device__ uint32_t known() const { return shared + Config::kShared.words + 12; }
  /// Items, by slot, 16 bytes each; as CTA 0 of the cluster hands them to the other one.
  __device__ uint32_t ticket(uint32_t slot) const { return shared + Config::kShared.tickets + slot * 16; }
  __device__ uint32_t handed(uint32_t slot) const { return shared + Config::kShared.handed + slot * 16; }
  __device__ uint32_t handed_barrier(uint32_t slot) const {
    return shared + Config::kShared.handed_barriers + slot * 8;
  }
  /// The number of rows over which an item sums, by its slot, where K is grouped.
  __device__ uint32_t depth(uint32_t slot) const { return shared + Config::kShared.depths + slot * 4; }
  /// Numbers of parts that the pushing warps send.
  __device__ uint32_t pushed(uint32_t slot) const { return shared + Config::kShared.pushed + slot * 4; }
};

}  // namespace overlace::gemm_core
