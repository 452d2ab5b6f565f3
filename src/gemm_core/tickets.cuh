// Which CTA takes which item of work: dealt beforehand, or by numbers drawn from a counter of the device.
#pragma once

#include "src/device/ptx/shared.cuh"
#include "src/gemm_core/cta.cuh"
#include "src/gemm_core/params.cuh"
#include "src/spec/work_order_pod.h"

namespace overlace::gemm_core {

/// The next number, if `asks`; else *number stays. 0 again after `draws` of them. One instruction, so that nothing
/// waits for the number before it is used.
__device__ __forceinline__ void draw_number(bool asks, uint32_t* counter, uint32_t draws, uint32_t* number) {
  asm volatile(
      "{\n.reg .pred p;\n"
      "setp.ne.u32 p, %2, 0;\n"
      "@p atom.relaxed.gpu.global.inc.u32 %0, [%1], %3;\n}"
      : "+r"(*number)
      : "l"(counter), "r"(static_cast<uint32_t>(asks)), "r"(draws - 1)
      : "memory");
}

/// Item `number` of those that are dealt.
__device__ __forceinline__ WorkItem product_at(const GemmParams& p, int32_t number) {
  return {Work::product, tile_at(p.order, number)};
}

/// An item as all roles of a CTA find it in a slot of shared memory; `is_end` behind the last one and after a failure.
struct Taken {
  WorkItem item;
  bool is_end = true;
};
template <class Config>
__device__ __forceinline__ Taken taken_of(const Cta<Config>& cta, uint32_t ordinal, const Deadline& deadline) {
  if (deadline.is_over) return {};
  const uint4 words = ptx::load_four_words(cta.ticket(ordinal % kTicketSlots));
  const TileCoord at{static_cast<int32_t>(words.y), static_cast<int32_t>(words.z), static_cast<int32_t>(words.w)};
  return {{static_cast<Work>(words.x), at}, words.x >= kWorks};
}
/// What this CTA takes as number `ordinal`, once the load thread has told it.
template <uint32_t kPauseNs = 0, class Config>
__device__ __forceinline__ Taken await_item(const Cta<Config>& cta, uint32_t ordinal, Deadline& deadline) {
  wait_count<kPauseNs>(cta.announced(), ordinal + 1, deadline);
  return taken_of(cta, ordinal, deadline);
}
/// Consumers, which mostly need no more of an item than its kind; kWorks at the end. An item is told before its first
/// stage is loaded, and the end as a stage.
template <class Config>
__device__ __forceinline__ uint32_t await_work(const Cta<Config>& cta, uint32_t ordinal,
                                               const Ring<Config::kStages>& ring, Deadline& deadline) {
  wait_barrier(cta.full(ring.slot), ring.parity, deadline);
  return deadline.is_over ? kWorks : ptx::load_word(cta.ticket(ordinal % kTicketSlots));
}

/// The load thread's items: while it loads what take() gave, it calls ask(), fetch(), tell() and hear(). It asks behind
/// products as late as the time allows that a number takes: who asks early takes items from those who would be free
/// sooner. Where a sum or copy comes it asks for the one behind it at once, as the watching warp is to be ahead. CTA 0
/// of a cluster asks; it tells the roles of its CTA and the other CTA, which hears.
template <class Config, class Tickets, class Reduce>
class LoadItems {
 public:
  __device__ __forceinline__ LoadItems(const GemmParams& p, const Cta<Config>& cta, const Tickets& from,
                                       const Reduce& reduce)
      : p_(p), cta_(cta), from_(from), reduce_(reduce), number_(static_cast<uint32_t>(cta.cluster)) {}

  __device__ __forceinline__ void ask() {
    if constexpr (Tickets::kDraws) {
      draw_number(is_leader() && !has_asked_, from_.counter, static_cast<uint32_t>(from_.items + cta_.num_clusters),
                  &number_);
      has_asked_ = true;
    }
  }
  __device__ __forceinline__ void fetch() {
    if constexpr (Tickets::kDraws) {
      // Behind the last item lies one that is none.
      const uint32_t last = static_cast<uint32_t>(from_.items);
      if (is_leader()) asked_ = ptx::load_read_only(from_.list + (number_ < last ? number_ : last));
    }
  }
  __device__ __forceinline__ void tell(Deadline& deadline) {
    if constexpr (Tickets::kDraws) {
      if (!is_leader()) return;
      has_asked_ = false;
      const uint4 words = asked_;
      if constexpr (Config::kCluster > 1) {
        const uint32_t slot = told_ % kTicketSlots;
        ptx::store_four_words_to(ptx::cluster_address(cta_.handed(slot), 1), words,
                                 ptx::cluster_address(cta_.handed_barrier(slot), 1));
      }
      announce(words, deadline);
      if (Reduce::kLoads && words.x != kWorks && static_cast<Work>(words.x) != Work::product) ask();
    }
  }
  __device__ __forceinline__ void hear(Deadline& deadline) {
    if constexpr (Tickets::kDraws && Config::kCluster > 1) {
      if (is_leader()) return;
      const uint32_t slot = told_ % kTicketSlots, barrier = cta_.handed_barrier(slot);
      ptx::mbarrier_arrive_expect(barrier, sizeof(uint4));
      wait_barrier(barrier, told_ / kTicketSlots % 2, deadline);
      announce(deadline.is_over ? uint4{kWorks, 0, 0, 0} : ptx::load_four_words(cta_.handed(slot)), deadline);
    }
  }
  /// The next item; take() goes on behind it.
  __device__ __forceinline__ Taken next() const {
    if constexpr (Tickets::kDraws) {
      return taken_of(cta_, told_ - 1, {});
    } else {
      const auto number = static_cast<int32_t>(number_);
      if (number >= p_.num_tiles) return {};
      return {product_at(p_, number), false};
    }
  }
  /// The slot of what take() gave.
  __device__ __forceinline__ uint32_t slot() const { return (told_ - 1) % kTicketSlots; }
  __device__ __forceinline__ Taken take() {
    const Taken taken = next();
    if constexpr (!Tickets::kDraws) number_ += static_cast<uint32_t>(cta_.num_clusters);
    return taken;
  }

 private:
  __device__ __forceinline__ static bool is_leader() { return Config::kCluster == 1 || ptx::cluster_rank() == 0; }
  __device__ __forceinline__ void announce(const uint4& words, Deadline& deadline) {
    // Only the watching warp, among those who read slots, is not held up by stages or staging buffers.
    if constexpr (Reduce::kLoads) reduce_.await_look(cta_, static_cast<int32_t>(told_ + 1 - kTicketSlots), deadline);
    ptx::store_four_words(cta_.ticket(told_ % kTicketSlots), words);
    ptx::store_release_cta(cta_.announced(), ++told_);
  }

  const GemmParams& p_;
  const Cta<Config>& cta_;
  const Tickets& from_;
  const Reduce& reduce_;
  uint32_t number_, told_ = 0;
  uint4 asked_{};
  bool has_asked_ = false;
};

/// Before which blocks of K of an item the load thread asks for the number of the next one, fetches it from the list
/// and tells it: each takes about a microsecond, a stage a quarter. It hears of it at the end.
struct Moments {
  int32_t ask, fetch, tell;
};
inline constexpr int kMoments = 4;
__device__ __forceinline__ Moments moments_of(int32_t k_blocks) {
  constexpr int32_t kAhead = 14, kUnderWay = 8, kFound = 3;
  const auto before_end = [=](int32_t blocks) { return k_blocks > blocks ? k_blocks - blocks : 0; };
  return {before_end(kAhead), before_end(kUnderWay), before_end(kFound)};
}

}  // namespace overlace::gemm_core
