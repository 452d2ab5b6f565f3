// The persistent kernel body: who does what.
#pragma once

#include "src/ops/gemm_core/gated.cuh"

namespace overlace::ops::gemm_core {

/// Of a thread; 128 producers and 256 consumers share 64 K. The order of tiles takes more than 40.
struct Registers {
  int producer, consumer;
};
constexpr Registers registers(bool pushes, bool loads) {
  return pushes ? Registers{72, 208} : loads ? Registers{72, 216} : Registers{56, 224};
}

/// The place of this cluster in the grid, before the next grid may start: so a counter serves all calls of a stream.
/// Told through shared memory, whose words of items are free where items are dealt.
template <class Config>
struct PlaceInGrid {
  uint32_t number = 0;

  __device__ __forceinline__ void ask(const DrawnPlaces& from) {
    if (threadIdx.x != 0 || (Config::kCluster > 1 && ptx::cluster_rank() != 0)) return;
    draw_number(true, from.counter, gridDim.x / Config::kCluster, &number);
  }
  /// To all CTAs of the cluster, which meet behind it.
  __device__ __forceinline__ void tell(const Place<Config>& place) const {
    if (threadIdx.x != 0 || (Config::kCluster > 1 && ptx::cluster_rank() != 0)) return;
    ptx::store_word(place.ticket(0), number);
    for (uint32_t other = 1; other < Config::kCluster; ++other)
      ptx::store_word_to(ptx::cluster_address(place.ticket(0), other), number);
  }
  __device__ __forceinline__ static int32_t hear(const Place<Config>& place) {
    return static_cast<int32_t>(ptx::load_word(place.ticket(0)));
  }
};

template <class Config, class Tickets>
__device__ __forceinline__ Place<Config> set_up(uint32_t shared, const Tickets& tickets) {
  PlaceInGrid<Config> drawn;
  if constexpr (Tickets::kDrawsPlaces) drawn.ask(tickets);
  Place<Config> place;
  place.shared = (shared + 1023) & ~1023u;
  const uint32_t in_cluster = Config::kCluster == 1 ? 0 : ptx::cluster_rank();
  place.cluster = static_cast<int32_t>(blockIdx.x / Config::kCluster);
  place.num_clusters = static_cast<int32_t>(gridDim.x / Config::kCluster);
  place.m_in_cluster = static_cast<int32_t>(in_cluster % Config::kClusterM);
  place.n_in_cluster = static_cast<int32_t>(in_cluster / Config::kClusterM % Config::kClusterN);
  place.k_in_cluster = static_cast<int32_t>(in_cluster / Config::kSharing);
  if (threadIdx.x == 0) {
    for (uint32_t i = 0; i < Config::kStages; ++i) {
      ptx::mbarrier_init(place.full(i), 1);
      ptx::mbarrier_init(place.empty(i), Config::kGroups * Config::kSharing);
    }
    for (uint32_t i = 0; i < kConsumerGroups * Config::kSpec.store_buffers; ++i) {
      ptx::mbarrier_init(place.shared + Config::kShared.staged + i * 8, 4);  // warps
      ptx::mbarrier_init(place.shared + Config::kShared.freed + i * 8, 1);
    }
    for (uint32_t i = 0; i < kTicketSlots; ++i) ptx::mbarrier_init(place.handed_barrier(i), 1);
    for (const uint32_t word : {place.announced(), place.watched(), place.looked(), place.known()})
      ptx::store_release_cta(word, 0);
    if constexpr (Config::kSplitK > 1) {
      ptx::mbarrier_init(place.shared + Config::kShared.come, 1);
      ptx::mbarrier_init(place.shared + Config::kShared.taken, 4);  // warps
    }
    ptx::mbarrier_init_fence();
  }
  if constexpr (Tickets::kDrawsPlaces) {
    drawn.tell(place);
    if constexpr (Config::kCluster > 1) {
      ptx::cluster_sync();
    } else {
      __syncthreads();
    }
    place.cluster = drawn.hear(place);
  } else {
    __syncthreads();
    if constexpr (Config::kCluster > 1) ptx::cluster_sync_relaxed();
  }
  return place;
}

/// All threads of a consumer warpgroup of a kernel without sums of its own.
template <class Config, class StoreOutput, class Reduce>
__device__ __forceinline__ void multiply_all(const GemmParams& p, const Place<Config>& place, uint32_t group,
                                             const Staging<Config>& staging, const StoreOutput& store, Reduce& reduce,
                                             Ring<Config::kStages>& operands, Ring<Staging<Config>::kBuffers>& results,
                                             Patience& patience) {
  Sums<Config> sums;
  if (group > 0) Turn<Config>{group, place.cluster >= p.num_tiles}.hand_on();
  int32_t next = place.first_tile(group);
  for (int32_t index = place.cluster; index < p.num_tiles; index += place.num_clusters) {
    if (index != next) {
      operands.advance(static_cast<uint32_t>(p.k_blocks));
      continue;
    }
    next += place.tile_step();
    const Turn<Config> turn{group, index + place.num_clusters >= p.num_tiles};
    turn.begin();
    multiply_tile<Config>(sums, p.k_blocks, place, turn, operands, patience);
    const auto item = [&] { return product_at(p, index); };
    if constexpr (Reduce::kReduces) reduce.template add<Config>(sums, place, group, item, operands, patience);
    if (!place.stores(group)) continue;
    if constexpr (StoreOutput::kGates) {
      if (store.is_gated()) {
        stage_tile<Config>(sums, staging, results, patience, write_gated<Config>);
        continue;
      }
    }
    stage_tile<Config>(sums, staging, results, patience, write_rounded<Config>);
  }
}

/// The same with numbers that are drawn, and sums and copies among the items.
template <class Config, class StoreOutput, class Reduce>
__device__ __forceinline__ void work_all(const GemmParams& p, const Place<Config>& place, uint32_t group,
                                         const Staging<Config>& staging, const StoreOutput& store, Reduce& reduce,
                                         Ring<Config::kStages>& operands, Ring<Staging<Config>::kBuffers>& results,
                                         Patience& patience) {
  static_assert(Config::kTurns == 1);
  static_assert(Config::kStages + 6 <= kTicketSlots);  // stages, what is staged, one item ahead
  for (uint32_t ordinal = 0;; ++ordinal) {
    const uint32_t work = await_work(place, ordinal, operands, patience);
    if (work == kWorks) {
      if (place.stores(group)) stage_end<Config>(staging, results, patience);
      break;
    }
    const auto item = [&] { return taken_of(place, ordinal, patience).item; };
    if constexpr (Reduce::kLoads) {
      if (static_cast<Work>(work) != Work::product) {
        reduce.template add<Config>(place, group, static_cast<Work>(work), item, staging, operands, results, patience);
        continue;
      }
    }
    Sums<Config> sums;
    multiply_tile<Config>(sums, p.k_blocks, place, Turn<Config>{group, false}, operands, patience);
    if constexpr (Reduce::kReduces && !Reduce::kLoads)
      reduce.template add<Config>(sums, place, group, item, operands, patience);
    if (!place.stores(group)) continue;
    if constexpr (StoreOutput::kGates) {
      if (store.is_gated()) {
        stage_tile<Config>(sums, staging, results, patience, write_gated<Config>);
        continue;
      }
    }
    stage_tile<Config>(sums, staging, results, patience, write_rounded<Config>);
  }
}

/// All threads of the CTA. Warps of the first warpgroup: 0 loads, 1 watches for what `reduce` waits for, 2 and 3 store
/// what consumers 0 and 1 staged; 1 to 3 first push, where `push` does.
template <class Config, class Tickets, class WaitInput, class StoreOutput, class SignalDone, class Push, class Reduce>
__device__ __forceinline__ void run(const GemmParams& p, const Tickets& tickets, WaitInput wait, StoreOutput store,
                                    SignalDone signal, Push push, Reduce reduce) {
  static_assert(Tickets::kDraws || !Reduce::kLoads);
  extern __shared__ uint8_t dynamic_shared[];
  constexpr Registers kRegisters = registers(Push::kPushes, Reduce::kLoads);
  const Place<Config> place = set_up<Config>(ptx::shared_address(dynamic_shared), tickets);
  const uint32_t warp = threadIdx.x / 32;
  ptx::let_next_grid_start();
  if (warp < 4) {
    // ---- producers ----
    ptx::registers_shrink<kRegisters.producer>();
    if (warp == 0) {
      if (threadIdx.x % 32 == 0) load_tiles(p, place, tickets, wait, reduce);
      __syncwarp();
      wait.end();
      reduce.end();
    } else {
      push.run(place);
      if (warp == 1) {
        if constexpr (Reduce::kLoads) reduce.watch(p, place);
      } else {
        store.begin();
        if (threadIdx.x % 32 == 0 && place.stores(warp - 2)) store_tiles<Tickets>(p, place, warp - 2, store, signal);
        __syncwarp();
      }
    }
    __syncwarp();
  } else {
    // ---- consumers ----
    ptx::registers_grow<kRegisters.consumer>();
    const uint32_t group = warp / 4 - 1;
    const Staging<Config> staging(place, group);
    Patience patience{p.error, p.timeout_ns};
    Ring<Config::kStages> operands;
    Ring<Staging<Config>::kBuffers> results;
    reduce.start();
    if constexpr (Tickets::kDraws) {
      work_all<Config>(p, place, group, staging, store, reduce, operands, results, patience);
    } else {
      multiply_all<Config>(p, place, group, staging, store, reduce, operands, results, patience);
    }
  }
  // NOTE: nobody leaves while another CTA of the cluster may still arrive at its barriers.
  if constexpr (Config::kCluster > 1) ptx::cluster_sync_relaxed();
}

}  // namespace overlace::ops::gemm_core
