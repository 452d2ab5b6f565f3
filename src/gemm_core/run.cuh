// The persistent kernel body: who does what.
#pragma once

#include "src/gemm_core/gated.cuh"

namespace overlace::gemm_core {

/// Registers of a thread; 128 producers and 256 consumers share 64 K. The order of tiles takes more than 40. Who moves
/// rows all the while has many of them under way.
struct Registers {
  int producer, consumer;
};
constexpr Registers registers(bool pushes, bool loads, bool moves) {
  return moves ? Registers{144, 176} : pushes ? Registers{72, 208} : loads ? Registers{72, 216} : Registers{56, 224};
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
  __device__ __forceinline__ void tell(const Cta<Config>& cta) const {
    if (threadIdx.x != 0 || (Config::kCluster > 1 && ptx::cluster_rank() != 0)) return;
    ptx::store_word(cta.ticket(0), number);
    for (uint32_t other = 1; other < Config::kCluster; ++other)
      ptx::store_word_to(ptx::cluster_address(cta.ticket(0), other), number);
  }
  __device__ __forceinline__ static int32_t hear(const Cta<Config>& cta) {
    return static_cast<int32_t>(ptx::load_word(cta.ticket(0)));
  }
};

template <class Config, class Tickets>
__device__ __forceinline__ Cta<Config> set_up(uint32_t shared, const Tickets& tickets) {
  PlaceInGrid<Config> drawn;
  if constexpr (Tickets::kDrawsPlaces) drawn.ask(tickets);
  Cta<Config> cta;
  cta.shared = (shared + 1023) & ~1023u;
  const uint32_t in_cluster = Config::kCluster == 1 ? 0 : ptx::cluster_rank();
  cta.cluster = static_cast<int32_t>(blockIdx.x / Config::kCluster);
  cta.num_clusters = static_cast<int32_t>(gridDim.x / Config::kCluster);
  cta.m_in_cluster = static_cast<int32_t>(in_cluster % Config::kClusterM);
  cta.n_in_cluster = static_cast<int32_t>(in_cluster / Config::kClusterM % Config::kClusterN);
  cta.k_in_cluster = static_cast<int32_t>(in_cluster / Config::kSharing);
  if (threadIdx.x == 0) {
    for (uint32_t i = 0; i < Config::kStages; ++i) {
      ptx::mbarrier_init(cta.full(i), 1);
      ptx::mbarrier_init(cta.empty(i), Config::kGroups * Config::kSharing);
    }
    for (uint32_t i = 0; i < kConsumerGroups * Config::kSpec.store_buffers; ++i) {
      ptx::mbarrier_init(cta.shared + Config::kShared.staged + i * 8, 4);  // warps
      ptx::mbarrier_init(cta.shared + Config::kShared.freed + i * 8, 1);
    }
    for (uint32_t i = 0; i < kTicketSlots; ++i) ptx::mbarrier_init(cta.handed_barrier(i), 1);
    for (const uint32_t word : {cta.announced(), cta.watched(), cta.looked(), cta.known()})
      ptx::store_release_cta(word, 0);
    if constexpr (Config::kSplitK > 1) {
      ptx::mbarrier_init(cta.shared + Config::kShared.come, 1);
      ptx::mbarrier_init(cta.shared + Config::kShared.taken, 4);  // warps
    }
    ptx::mbarrier_init_fence();
  }
  if constexpr (Tickets::kDrawsPlaces) {
    drawn.tell(cta);
    if constexpr (Config::kCluster > 1) {
      ptx::cluster_sync();
    } else {
      __syncthreads();
    }
    cta.cluster = drawn.hear(cta);
  } else {
    __syncthreads();
    if constexpr (Config::kCluster > 1) ptx::cluster_sync_relaxed();
  }
  return cta;
}

/// All threads of a consumer warpgroup of a kernel without sums of its own.
template <class Config, class StoreOutput, class Reduce>
__device__ __forceinline__ void multiply_all(const GemmParams& p, const Cta<Config>& cta, uint32_t group,
                                             const Staging<Config>& staging, const StoreOutput& store, Reduce& reduce,
                                             Ring<Config::kStages>& operands, Ring<Staging<Config>::kBuffers>& results,
                                             Deadline& deadline) {
  Accumulators<Config> sums;
  if (group > 0) PingPongOrder<Config>{group, cta.cluster >= p.num_tiles}.hand_on();
  int32_t next = cta.first_tile(group);
  for (int32_t index = cta.cluster; index < p.num_tiles; index += cta.num_clusters) {
    if (index != next) {
      operands.advance(static_cast<uint32_t>(p.k_blocks));
      continue;
    }
    next += cta.tile_step();
    const PingPongOrder<Config> turn{group, index + cta.num_clusters >= p.num_tiles};
    turn.begin();
    multiply_tile<Config>(sums, depth_of_all(p, cta), cta, turn, operands, deadline);
    const auto item = [&] { return product_at(p, index); };
    if constexpr (Reduce::kReduces) reduce.template add<Config>(sums, cta, group, item, operands, deadline);
    if (!cta.stores(group)) continue;
    if constexpr (StoreOutput::kGates) {
      if (store.is_gated(item)) {
        stage_tile<Config>(sums, staging, results, deadline, write_gated<Config>);
        continue;
      }
    }
    stage_tile<Config>(sums, staging, results, deadline, write_sums<Config>);
  }
}

/// All threads of a consumer warpgroup of a kernel with numbers that are drawn, and sums and copies among the items.
template <class Config, class StoreOutput, class Reduce>
__device__ __forceinline__ void work_all(const GemmParams& p, const Cta<Config>& cta, uint32_t group,
                                         const Staging<Config>& staging, const StoreOutput& store, Reduce& reduce,
                                         Ring<Config::kStages>& operands, Ring<Staging<Config>::kBuffers>& results,
                                         Deadline& deadline) {
  static_assert(Config::kPingPong == 1);
  static_assert(Config::kStages + 6 <= kTicketSlots);  // stages, what is staged, one item ahead
  for (uint32_t ordinal = 0;; ++ordinal) {
    const uint32_t work = await_work(cta, ordinal, operands, deadline);
    if (work == kWorks) {
      if (cta.stores(group)) stage_end<Config>(staging, results, deadline);
      break;
    }
    const auto item = [&] { return taken_of(cta, ordinal, deadline).item; };
    if constexpr (Reduce::kLoads) {
      if (static_cast<Work>(work) != Work::product) {
        reduce.template add<Config>(cta, group, static_cast<Work>(work), item, staging, operands, results, deadline);
        continue;
      }
    }
    Accumulators<Config> sums;
    multiply_tile<Config>(sums, hear_depth(p, cta, ordinal), cta, PingPongOrder<Config>{group, false}, operands,
                          deadline);
    if constexpr (Reduce::kReduces && !Reduce::kLoads)
      reduce.template add<Config>(sums, cta, group, item, operands, deadline);
    if (!cta.stores(group)) continue;
    if constexpr (StoreOutput::kGates) {
      if (store.is_gated(item)) {
        stage_tile<Config>(sums, staging, results, deadline, write_gated<Config>);
        continue;
      }
    }
    stage_tile<Config>(sums, staging, results, deadline, write_sums<Config>);
  }
}

/// All threads of the CTA. Warps of the first warpgroup: 0 loads, 1 watches for what `reduce` waits for, 2 and 3 store
/// what consumers 0 and 1 staged; 1 to 3 first push, where `push` does. Where it moves rows, 1 does so all the while,
/// and consumers do when there are no products any more.
template <class Config, class Tickets, class WaitInput, class StoreOutput, class SignalDone, class Push, class Reduce>
__device__ __forceinline__ void run(const GemmParams& p, const Tickets& tickets, WaitInput wait, StoreOutput store,
                                    SignalDone signal, Push push, Reduce reduce) {
  static_assert(Tickets::kDraws || !Reduce::kLoads);
  extern __shared__ uint8_t dynamic_shared[];
  constexpr Registers kRegisters = registers(Push::kPushes, Reduce::kLoads, Push::kMoves);
  const Cta<Config> cta = set_up<Config>(ptx::shared_address(dynamic_shared), tickets);
  const uint32_t warp = threadIdx.x / 32;
  ptx::let_next_grid_start();
  if (warp < 4) {
    // ---- producers ----
    ptx::registers_shrink<kRegisters.producer>();
    if (warp == 0) {
      if (threadIdx.x % 32 == 0) load_tiles(p, cta, tickets, wait, reduce);
      __syncwarp();
      wait.end();
      reduce.end();
    } else {
      if (!Push::kMoves || warp == 1) push.run(cta);
      if (warp == 1) {
        if constexpr (Reduce::kLoads) reduce.watch(p, cta);
      } else {
        store.begin();
        if (threadIdx.x % 32 == 0 && cta.stores(warp - 2)) store_tiles<Tickets>(p, cta, warp - 2, store, signal);
        __syncwarp();
      }
    }
    __syncwarp();
  } else {
    // ---- consumers ----
    ptx::registers_grow<kRegisters.consumer>();
    const uint32_t group = warp / 4 - 1;
    const Staging<Config> staging(cta, group);
    Deadline deadline{p.error, p.timeout_ns};
    Ring<Config::kStages> operands;
    Ring<Staging<Config>::kBuffers> results;
    reduce.start();
    if constexpr (Tickets::kDraws) {
      work_all<Config>(p, cta, group, staging, store, reduce, operands, results, deadline);
    } else {
      multiply_all<Config>(p, cta, group, staging, store, reduce, operands, results, deadline);
    }
    if constexpr (Push::kMoves) push.help(cta);
  }
  // NOTE: nobody leaves while another CTA of the cluster may still arrive at its barriers.
  if constexpr (Config::kCluster > 1) ptx::cluster_sync_relaxed();
}

}  // namespace overlace::gemm_core
