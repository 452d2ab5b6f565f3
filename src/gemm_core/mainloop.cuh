// Operands: one thread of the load warp brings them in, the consumer warpgroups multiply them.
#pragma once

#include "overlace/device/detail/bulk.cuh"
#include "src/device/ptx/tensor.cuh"
#include "src/device/ptx/wgmma.cuh"
#include "src/gemm_core/params.cuh"
#include "src/gemm_core/tickets.cuh"
#include "src/spec/work_order_pod.h"

namespace overlace::gemm_core {

// Named barriers of each consumer warpgroup; those before are the hooks'.
inline constexpr uint32_t kPingPongBarrier = 8, kClearedBarrier = kPingPongBarrier + kConsumerGroups;

/// A tile of a consumer warpgroup. By turns, it begins when the other one has waited for the last stage of the tile
/// before: barriers know phases by their parity, so nobody may wait for a stage whose use before has not come.
template <class Config>
struct PingPongOrder {
  uint32_t group;
  bool is_last;  // of this CTA's tiles

  __device__ __forceinline__ void begin() const {
    if constexpr (Config::kPingPong > 1) ptx::named_barrier_sync<128 * Config::kPingPong>(kPingPongBarrier + group);
  }
  __device__ __forceinline__ void hand_on() const {
    if constexpr (Config::kPingPong > 1) {
      if (!is_last) ptx::named_barrier_arrive<128 * Config::kPingPong>(kPingPongBarrier + 1 - group);
    }
  }
};

/// A tile of this CTA.
struct Tile {
  TileCoord at;      // of the cluster
  int32_t row, col;  // first of this CTA's tile
  Work work;
};
template <class Config>
__device__ __forceinline__ Tile tile_of(const GemmParams& p, const Cta<Config>& cta, const WorkItem& item) {
  Tile t;
  t.work = item.work;
  t.at = item.at;
  t.row = first_row(p.order, t.at) + cta.m_in_cluster * Config::kTileM;
  t.col = (t.at.n * Config::kClusterN + cta.n_in_cluster) * Config::kTileN;
  return t;
}

/// Whether an item is of the second of two products.
template <class Config>
__device__ __forceinline__ bool is_second(const GemmParams& p, const TileCoord& at) {
  if constexpr (Config::kSpec.chained) {
    return at.shard >= static_cast<const ChainedParams&>(p).first_shard;
  } else {
    return false;
  }
}

/// A (kTileM, kTileK): whole, or this CTA's part of the rows, to all CTAs that share them. M-contiguous: boxes of 64 of
/// M.
template <class Config>
__device__ __forceinline__ void load_a(const CUtensorMap* map, const Cta<Config>& cta, uint32_t stage, int32_t row,
                                       int32_t k) {
  if constexpr (Config::kATransposed) {
#pragma unroll
    for (int box = 0; box < Config::kTileM / 64; ++box)
      ptx::load_box(cta.a(stage) + box * kTileK * 128, map, row + box * 64, k, cta.full(stage));
  } else if constexpr (Config::kClusterN == 1) {
    ptx::load_box(cta.a(stage), map, k, row, cta.full(stage));
  } else {
    constexpr int kRows = Config::kTileM / Config::kClusterN;
    const int32_t first = cta.n_in_cluster * kRows;
    ptx::load_box_to((1u << Config::kCluster) - 1, cta.a(stage) + static_cast<uint32_t>(first) * 128, map, k,
                     row + first, cta.full(stage));
  }
}

/// B (kTileN, kTileK): whole, or this CTA's part, to all CTAs that share it. K-contiguous: a part is rows of N, of
/// which `rows` are loaded. N-contiguous: boxes of 64 columns, of which a part is rows of K.
template <class Config>
inline constexpr int kRowsOfB = (Config::kBTransposed ? kTileK : Config::kTileN) / Config::kClusterM;
template <class Config>
__device__ __forceinline__ void load_b(const CUtensorMap* map, const Cta<Config>& cta, uint32_t stage, int32_t col,
                                       int32_t k, int32_t rows = kRowsOfB<Config>) {
  constexpr int kParts = Config::kClusterM, kBoxes = Config::kBTransposed ? Config::kTileN / 64 : 1;
  const int32_t first = cta.m_in_cluster * rows;
#pragma unroll
  for (int box = 0; box < kBoxes; ++box) {
    const uint32_t to = cta.b(stage) + static_cast<uint32_t>(box * kTileK + first) * 128;
    const int32_t x = Config::kBTransposed ? col + box * 64 : k;
    const int32_t y = (Config::kBTransposed ? k : col) + first;
    if constexpr (kParts == 1) {
      ptx::load_box(to, map, x, y, cta.full(stage));
    } else {
      ptx::load_box_to((1u << Config::kCluster) - 1, to, map, x, y, cta.full(stage));
    }
  }
}

/// Loads B of a stack, (matrices, N, halves, K), or boxes of 64 columns of (matrices, K, 1, N).
template <class Config>
__device__ __forceinline__ void load_b_of_stack(const GemmParams& p, const Cta<Config>& cta, uint32_t stage,
                                                const Tile& tile, int32_t k) {
  const CUtensorMap* const map = &p.b;
  if constexpr (Config::kSpec.chained) {
    const auto& both = static_cast<const ChainedParams&>(p);
    const bool second = is_second<Config>(p, tile.at);
    ptx::load_box(cta.b(stage), second ? &both.second_b : map, k, 0, second ? tile.col : tile.col / 2,
                  second ? tile.at.shard - both.first_shard : tile.at.shard, cta.full(stage));
  } else if constexpr (Config::kBTransposed) {
#pragma unroll
    for (int box = 0; box < Config::kTileN / 64; ++box)
      ptx::load_box(cta.b(stage) + box * kTileK * 128, map, tile.col + box * 64, 0, k, tile.at.shard, cta.full(stage));
  } else {
    ptx::load_box(cta.b(stage), map, k, 0, tile.col / Config::kSpec.halves, tile.at.shard, cta.full(stage));
  }
}

/// What a tile sums over: blocks of K, of whose last one `rest` count, which may be none.
struct Depth {
  int32_t first, blocks, rest;
};
/// A group has at least one block, so that each item has a stage.
__device__ __forceinline__ Depth depth_of_group(const RowGroup& group) {
  const int32_t more = group.rows > 0 ? (group.rows - 1) / kTileK : 0;
  return {group.first / kTileK, more + 1, group.rows - more * kTileK};
}
template <class Config>
__device__ __forceinline__ Depth depth_of_all(const GemmParams& p, const Cta<Config>& cta) {
  return {Config::kSplitK == 1 ? 0 : cta.k_in_cluster * p.k_blocks, p.k_blocks, kTileK};
}
/// That of an item whose depth all roles know.
template <class Config>
__device__ __forceinline__ Depth depth_of(const GemmParams& p, const Cta<Config>& cta, const TileCoord& at) {
  if constexpr (Config::kSpec.chained) {
    return {0, is_second<Config>(p, at) ? static_cast<const ChainedParams&>(p).second_k_blocks : p.k_blocks, kTileK};
  } else {
    return depth_of_all(p, cta);
  }
}
/// The load thread, which tells the consumers.
template <class Config>
__device__ __forceinline__ Depth tell_depth(const GemmParams& p, const Cta<Config>& cta, const Tile& tile,
                                            uint32_t slot) {
  if constexpr (Config::kSpec.groups_k) {
    const int2 words = __ldg(reinterpret_cast<const int2*>(p.groups) + tile.at.shard);
    ptx::store_word(cta.depth(slot), static_cast<uint32_t>(words.y));
    return depth_of_group({words.x, words.y});
  } else {
    return depth_of(p, cta, tile.at);
  }
}
/// Consumers, once a stage of item `ordinal` is full.
template <class Config>
__device__ __forceinline__ Depth hear_depth(const GemmParams& p, const Cta<Config>& cta, uint32_t ordinal) {
  if constexpr (Config::kSpec.groups_k) {
    return depth_of_group({0, static_cast<int32_t>(ptx::load_word(cta.depth(ordinal % kTicketSlots)))});
  } else if constexpr (Config::kSpec.chained) {
    return depth_of(p, cta, taken_of(cta, ordinal, {}).item.at);
  } else {
    return depth_of_all(p, cta);
  }
}

/// Where a tile finds its rows of activations: of A, with swapped operands of B.
struct Source {
  const CUtensorMap* map;
  int32_t row;
};

/// Claims a stage and loads its part of the weights, which are there whatever the call waits for.
template <class Config>
__device__ __forceinline__ void open_stage(const GemmParams& p, const Cta<Config>& cta, uint32_t stage,
                                           const Tile& tile, int32_t k) {
  constexpr uint32_t kFull = Config::kSpec.a_bytes() + Config::kSpec.b_bytes();
  ptx::mbarrier_arrive_expect(cta.full(stage), Config::kSpec.swaps_ab ? p.stage_bytes : kFull);
  if constexpr (Config::kSpec.swaps_ab) {
    load_a(&p.a, cta, stage, tile.row, k * kTileK);
  } else if constexpr (Config::kSpec.halves != 0) {
    load_b_of_stack(p, cta, stage, tile, k * kTileK);
  } else {
    load_b(&p.b, cta, stage, tile.col, k * kTileK);
  }
}
template <class Config>
__device__ __forceinline__ void load_activations(const GemmParams& p, const Source& from, const Cta<Config>& cta,
                                                 uint32_t stage, int32_t k) {
  if constexpr (Config::kSpec.swaps_ab) {
    // Tokens that there are, of which CTAs of a column load equal parts.
    const auto tokens = static_cast<int32_t>((p.stage_bytes - Config::kSpec.a_bytes()) / (kTileK * 2));
    load_b(from.map, cta, stage, from.row, k * kTileK, tokens / Config::kClusterM);
  } else {
    load_a(from.map, cta, stage, from.row, k * kTileK);
  }
}

/// All that was loaded has arrived: nothing is read from memory any more.
template <class Config>
__device__ __forceinline__ void drain_loads(const Cta<Config>& cta, const Ring<Config::kStages>& next,
                                            Deadline& deadline) {
  for (uint32_t slot = 0; slot < Config::kStages; ++slot) {
    wait_barrier(cta.full(slot), slot < next.slot ? next.parity : next.parity ^ 1, deadline);
  }
}

/// One thread. `wait.wait<Config>(tile, k_block)` returns when those rows and columns of the activations may be read,
/// which are at `wait.source<Config>(p, tile)`. Sums and copies have no operands: `reduce.load` brings what is added,
/// through the same stages.
template <class Config, class Tickets, class WaitInput, class Reduce>
__device__ void load_tiles(const GemmParams& p, const Cta<Config>& cta, const Tickets& tickets, WaitInput& wait,
                           Reduce& reduce) {
  Deadline deadline{p.error, p.timeout_ns};
  Ring<Config::kStages> ring;
  ptx::prefetch_map(&p.a);
  ptx::prefetch_map(&p.b);
  ptx::wait_for_previous_grid();
  LoadItems<Config, Tickets, Reduce> items(p, cta, tickets, reduce);
  items.ask();
  wait.begin();
  reduce.begin();
  items.fetch();
  items.tell(deadline);
  items.hear(deadline);
  const int32_t first_k = depth_of_all(p, cta).first;
  int32_t opened = 0;  // stages ahead of the ring
  if constexpr (WaitInput::kWaits) {
    if (const Taken next = items.next(); !next.is_end) {
      const Tile first = tile_of(p, cta, next.item);
      const int32_t blocks = depth_of(p, cta, next.item.at).blocks;
      const int32_t most = blocks < Config::kStages ? blocks : Config::kStages;
      for (; opened < most; ++opened) open_stage(p, cta, static_cast<uint32_t>(opened), first, first_k + opened);
    }
  }
  for (;;) {
    const Taken taken = items.take();
    if (taken.is_end) break;
    const Tile tile = tile_of(p, cta, taken.item);
    if constexpr (Reduce::kLoads) {
      if (tile.work != Work::product) {
        reduce.load(cta, tile, ring, deadline, items);
        continue;
      }
    }
    const Source from = wait.template source<Config>(p, tile);
    const Depth depth = tell_depth(p, cta, tile, items.slot());
    const Moments moments = moments_of(depth.blocks);
    // NOTE: nothing more may stand in the inner loop. A stage of tiles of 128 columns lasts 300 cycles, and one thread
    // loads it.
    int32_t k = 0;
#pragma unroll 1
    for (int moment = 0; moment < kMoments; ++moment) {
      const int32_t end = moment == 0   ? moments.ask
                          : moment == 1 ? moments.fetch
                          : moment == 2 ? moments.tell
                                        : depth.blocks;
      for (; k < end; ++k) {
        if (opened > 0) {
          --opened;
        } else {
          // NOTE: with shared loads the slot must be free in every CTA that they reach; all its consumers arrive here.
          wait_barrier(cta.empty(ring.slot), ring.parity ^ 1, deadline);
          open_stage(p, cta, ring.slot, tile, depth.first + k);
        }
        wait.template wait<Config>(tile, k, deadline);
        load_activations(p, from, cta, ring.slot, depth.first + k);
        ring.advance();
      }
      if (moment == 0) items.ask();
      if (moment == 1) items.fetch();
      if (moment == 2) items.tell(deadline);
      if (moment == 3) items.hear(deadline);
    }
  }
  if constexpr (WaitInput::kDrains || Reduce::kLoads) drain_loads(cta, ring, deadline);
  if constexpr (Tickets::kDraws) {  // a stage without operands: consumers see that there is no item
    wait_barrier(cta.empty(ring.slot), ring.parity ^ 1, deadline);
    ptx::mbarrier_arrive(cta.full(ring.slot));
  }
}

/// Sums of one consumer warpgroup, per block of 64 rows.
template <class Config>
using Accumulators = float[Config::kBlocksM][Config::kTileN / 2];

/// All threads of a consumer warpgroup: rows from `rest` on of what it multiplies become zeros, as what lies behind a
/// group is not to be added, whatever it is. B's are cleared by each warpgroup, so that none waits for another.
template <class Config>
__device__ __forceinline__ void clear_rows(const Cta<Config>& cta, uint32_t stage, uint32_t group, int32_t rest) {
  constexpr int32_t kUnits = 8, kRowsAtOnce = 128 / kUnits;  // 16 bytes each, of a row of a box
  const auto thread = static_cast<int32_t>(threadIdx.x % 128);
  const uint32_t a = cta.a(stage) + static_cast<uint32_t>(cta.first_row(group)) * 128;
  for (int32_t row = rest + thread / kUnits; row < kTileK; row += kRowsAtOnce) {
    const auto at = static_cast<uint32_t>(row * 128 + thread % kUnits * 16);
#pragma unroll
    for (int box = 0; box < Config::kBlocksM; ++box) ptx::store_four_words(a + at + box * kTileK * 128, {});
#pragma unroll
    for (int box = 0; box < Config::kTileN / 64; ++box)
      ptx::store_four_words(cta.b(stage) + at + box * kTileK * 128, {});
  }
  ptx::fence_shared_to_bulk();
  ptx::named_barrier_sync<128>(kClearedBarrier + group);
}

/// All threads of a consumer warpgroup: sums = A B of one tile, of this CTA's part of K.
template <class Config>
__device__ __forceinline__ void multiply_tile(Accumulators<Config>& sums, const Depth& depth, const Cta<Config>& cta,
                                              const PingPongOrder<Config>& turn, Ring<Config::kStages>& ring,
                                              Deadline& deadline) {
  const uint32_t thread = threadIdx.x % 128;
  const uint32_t empty_there = ptx::cluster_address(
      cta.empty(0), Config::kSplitK == 1 ? thread % Config::kSharing : static_cast<uint32_t>(cta.k_in_cluster));
  const auto first_row = static_cast<uint32_t>(cta.first_row(turn.group));
  uint32_t last_slot = 0;
  for (int32_t k = 0; k < depth.blocks; ++k) {
    wait_barrier(cta.full(ring.slot), ring.parity, deadline);
    if (k + 1 == depth.blocks) turn.hand_on();
    if constexpr (Config::kSpec.groups_k) {
      if (k + 1 == depth.blocks && depth.rest < kTileK) clear_rows(cta, ring.slot, turn.group, depth.rest);
    }
    const uint32_t a_at = cta.a(ring.slot) + first_row * 128;
    const uint64_t a = Config::kATransposed ? ptx::descriptor_mn_major(a_at) : ptx::descriptor_k_major(a_at);
    const uint64_t b =
        Config::kBTransposed ? ptx::descriptor_mn_major(cta.b(ring.slot)) : ptx::descriptor_k_major(cta.b(ring.slot));
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < kTileK / 16; ++step) {
#pragma unroll
      for (int block = 0; block < Config::kBlocksM; ++block) {
        ptx::wgmma<typename Config::Element, Config::kATransposed, Config::kBTransposed>(
            sums[block], a + block * (64 * 128 / 16) + step * (Config::kATransposed ? 128 : 2),
            b + step * (Config::kBTransposed ? 128 : 2), k | step);
      }
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<1>();  // the block before has been read
    if (k > 0 && thread < Config::kSharing) ptx::mbarrier_arrive_cluster(empty_there + last_slot * 8);
    last_slot = ring.slot;
    ring.advance();
  }
  ptx::wgmma_wait<0>();
#pragma unroll
  for (int block = 0; block < Config::kBlocksM; ++block) ptx::wgmma_hold(sums[block]);
  if (thread < Config::kSharing) ptx::mbarrier_arrive_cluster(empty_there + last_slot * 8);
}

}  // namespace overlace::gemm_core
