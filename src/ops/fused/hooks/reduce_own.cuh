// Adds up what all ranks have computed of my rows, in rank order; copies what peers have added up of theirs.
#pragma once

#include "src/base/ceil_div_pod.h"
#include "src/device/ptx/barrier.cuh"
#include "src/gemm_core/epilogue.cuh"
#include "src/gemm_core/hooks/add_bias.cuh"
#include "src/ops/fused/exchange.cuh"

namespace overlace::ops::fused {

/// Sums come behind products, in bands (WorkOrder), so that no product waits for a peer. Their sources go through the
/// same stages: for a slice of store_cols() columns at a time, boxes of 64 rows by source and consumer warpgroup, those
/// of peers from the inbox, the own ones, rounded like them, from the result, where they were stored. AllReduce: copies
/// of peers' sums out of the inbox are sums of one source.
struct ReduceOwn {
  static constexpr bool kReduces = true, kLoads = true;
  static constexpr uint32_t kLookNs = 200;      // between looks of the watching warp at what is announced
  static constexpr uint32_t kFirstBarrier = 5;  // of each consumer warpgroup; those before are PushShard's
  const ScatterParams* s;
  const TileOrder* order;
  const GemmParams* gemm;
  uint32_t buffer = 0;
  int32_t awaited = -1;  // by the load thread: owner and group
  uint32_t had = 0;      // groups waited for

  __device__ __forceinline__ void start() {}
  __device__ __forceinline__ int32_t sources_of(Work work) const { return work == Work::sum ? order->size : 1; }
  __device__ __forceinline__ int32_t boxes_per_slice(Work work) const { return sources_of(work) * kConsumerGroups; }
  /// What an item waits for: of the own rank all senders' parts, of a peer its sums.
  __device__ __forceinline__ int32_t wanted_by(const TileCoord& at) const {
    return at.shard * kMaxGroups + group_of(s->groups, *order, at);
  }

  // ---- warp 1 ----

  /// All lanes, a sender each: waits for the groups of this CTA's sums and copies, each as soon as the load thread
  /// comes near to it, and counts them in shared memory. After a failure nobody is waited for.
  template <class Config>
  __device__ void watch(const GemmParams& p, const Cta<Config>& cta) const {
    ptx::wait_for_previous_grid();
    Deadline deadline{p.error, p.timeout_ns};
    const uint32_t lane = threadIdx.x % 32;
    const int32_t sender = (order->rank + 1 + static_cast<int32_t>(lane)) % order->size;
    uint32_t passed = 0;
    int32_t last = -1;
    for (uint32_t ordinal = 0;; ++ordinal) {
      const auto [item, is_end] = await_item<kLookNs>(cta, ordinal, deadline);
      __syncwarp();
      if (lane == 0) ptx::store_release_cta(cta.looked(), ordinal + 1);
      if (is_end) return;
      if (awaited_by(item.work).whose == Whose::nobody) continue;
      const TileCoord& at = item.at;
      const int32_t wanted = wanted_by(at);
      if (wanted == last) continue;
      last = wanted;
      Errc code = Errc::ok;
      const Words awaited = awaited_by(item.work);
      if (lane < static_cast<uint32_t>(order->size) && (awaited.whose == Whose::everybody || sender == at.shard)) {
        const int32_t group = wanted % kMaxGroups;
        const uint32_t id = id_of(*s, awaited.word, group);
        const uint64_t want = device::ticket(s->channel, sender, id) + adds_of_group(*s, at.shard, group);
        code = device::wait_ge_async(s->channel, sender, id, want);
      }
      __syncwarp();
      const bool has_failed = __any_sync(~0u, code != Errc::ok) != 0;
      ++passed;
      if (lane == 0) ptx::store_release_cta(cta.watched(), has_failed ? ~0u : passed);
      if (has_failed && lane == 0) ptx::store_release_cta(cta.looked(), ~0u);
      if (has_failed) return;
    }
  }

  // ---- load thread ----

  __device__ void begin() { buffer = buffer_of_call(*s); }

  /// Until the watching warp has seen the numbers of so many items: their slots are free.
  template <class Config>
  __device__ __forceinline__ void await_look(const Cta<Config>& cta, int32_t count, Deadline& deadline) const {
    if (count > 0) wait_count(cta.looked(), static_cast<uint32_t>(count), deadline);
  }

  /// `next`: LoadItems.
  template <class Config, class Items>
  __device__ void load(const Cta<Config>& cta, const Tile& tile, Ring<Config::kStages>& ring, Deadline& deadline,
                       Items& next) {
    constexpr int32_t kBoxes = Config::kSpec.stage_boxes(), kPieces = Staging<Config>::kPieces;
    static_assert(Config::kBlocksM * kPieces >= 2);  // slices, on the way through which the next item is told
    next.fetch();
    wait(cta, wanted_by(tile.at), deadline);
    const bool is_copy = tile.work == Work::copy;
    const CUtensorMap* const from = is_copy ? &s->sums_from[buffer] : &s->from[buffer];
    const int32_t boxes = boxes_per_slice(tile.work), row = tile.row - (is_copy ? 0 : order->row_begin[order->rank]);
    for (int32_t slice = 0; slice < Config::kBlocksM * kPieces; ++slice) {
      if (slice == 1) next.tell(deadline);
      if (slice == Config::kBlocksM * kPieces / 2) next.hear(deadline);
      const int32_t col = tile.col + slice % kPieces * Staging<Config>::kCols;
      for (int32_t box = 0; box < boxes; ++box) {
        const int32_t in_stage = box % kBoxes, left = boxes - box;
        if (in_stage == 0) {
          wait_barrier(cta.empty(ring.slot), ring.parity ^ 1, deadline);
          ptx::mbarrier_arrive_expect(
              cta.full(ring.slot), static_cast<uint32_t>(left < kBoxes ? left : kBoxes) * Config::kSpec.store_bytes());
        }
        const int32_t block = box % kConsumerGroups * Config::kBlocksM + slice / kPieces;
        const int32_t source = box / kConsumerGroups;
        const bool is_own = !is_copy && source + 1 == order->size;
        ptx::load_box(cta.box(ring.slot, in_stage), is_own ? &gemm->c : from, col,
                      (is_own ? 0 : source * s->slot_rows) + row + block * 64, cta.full(ring.slot));
        if (in_stage + 1 == kBoxes || left == 1) ring.advance();
      }
    }
  }

  /// All lanes of the load warp, once its loads are over.
  __device__ void end() const {
    ptx::named_barrier_sync<kBegunThreads>(kBegunBarrier);
    arrive(*s);
  }

  // ---- consumers ----

  /// All threads of a warpgroup: a sum of all ranks, scaled, with the bias; or a copy. `item()` is asked for where
  /// there is a bias.
  template <class Config, class Item>
  __device__ __forceinline__ void add(const Cta<Config>& cta, uint32_t consumer, Work work, Item item,
                                      const Staging<Config>& staging, Ring<Config::kStages>& ring,
                                      Ring<Staging<Config>::kBuffers>& results, Deadline& deadline) const {
    constexpr int kCols = Staging<Config>::kCols, kPieces = Staging<Config>::kPieces;
    constexpr int32_t kBoxes = Config::kSpec.stage_boxes();
    const bool is_sum = work == Work::sum;
    const int32_t stages = base::ceil_div(boxes_per_slice(work), kBoxes);
    const uint32_t thread = threadIdx.x % 128;
    const uint32_t empty_there = ptx::cluster_address(cta.empty(0), thread % Config::kCluster);
    int32_t col = 0;
    if (is_sum && s->bias != nullptr) {
      ptx::wait_for_previous_grid();
      col = tile_of(*gemm, cta, item()).col;
    }
#pragma unroll 1
    for (int slice = 0; slice < Config::kBlocksM * kPieces; ++slice) {
      Ring<Config::kStages> next = ring;
      for (int32_t i = 0; i < stages; ++i, next.advance()) wait_barrier(cta.full(next.slot), next.parity, deadline);
      float part[kCols / 2];
      add_slice<Config>(part, cta, consumer, ring.slot, is_sum);
      if (is_sum) scale<Config>(part, col + slice % kPieces * kCols);
      // Read by all warps before the slots are given back.
      ptx::named_barrier_sync<128>(kFirstBarrier + consumer);
      for (int32_t i = 0; i < stages; ++i, ring.advance())
        if (thread < Config::kCluster) ptx::mbarrier_arrive_cluster(empty_there + ring.slot * 8);
      stage_piece<Config>(part, staging, results, deadline, write_rounded<Config>);
    }
  }

 private:
  /// Once per group, if the order of tiles does not return to it.
  template <class Config>
  __device__ void wait(const Cta<Config>& cta, int32_t wanted, Deadline& deadline) {
    if (wanted == awaited) return;
    awaited = wanted;
    wait_count(cta.watched(), ++had, deadline);
    ptx::fence_proxy_async();
  }

  /// fp32, rank 0 first, wherever the owner stands among them.
  template <class Config>
  __device__ __forceinline__ void add_slice(float (&sum)[Staging<Config>::kCols / 2], const Cta<Config>& cta,
                                            uint32_t consumer, uint32_t first_slot, bool is_sum) const {
    using Element = typename Config::Element;
    constexpr int kFloats = Staging<Config>::kCols / 2;
    constexpr uint32_t kBoxes = Config::kSpec.stage_boxes();
    const uint32_t lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16 + lane % 16;
#pragma unroll
    for (float& x : sum) x = -0.0f;  // the zero that changes no summand
#pragma unroll 1
    for (int32_t i = 0; i < (is_sum ? order->size : 1); ++i) {
      const int32_t source = is_sum ? (i - order->rank - 1 + order->size) % order->size : 0;
      const uint32_t box = static_cast<uint32_t>(source) * kConsumerGroups + consumer;
      const uint32_t slot = (first_slot + box / kBoxes) % Config::kStages;
      const uint32_t at = cta.box(slot, static_cast<int32_t>(box % kBoxes)) + row * Staging<Config>::kRowBytes;
#pragma unroll
      for (int pair = 0; pair < kFloats / 8; ++pair) {
        uint32_t r[4];
        ptx::load_matrices(at + Staging<Config>::swizzled(row, static_cast<uint32_t>(pair) * 2 + lane / 16) * 16, r);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float2 x = unpack_pair(r[j], Element{});
          sum[pair * 8 + j * 2] += x.x;
          sum[pair * 8 + j * 2 + 1] += x.y;
        }
      }
    }
  }

  /// Two roundings, whatever the compiler would like to contract: the bits are those of every other implementation.
  template <class Config>
  __device__ __forceinline__ void scale(float (&sums)[Staging<Config>::kCols / 2], int32_t col) const {
#pragma unroll
    for (float& x : sums) x = __fmul_rn(x, s->alpha);
    if (s->bias != nullptr) add_bias<typename Config::Element>(sums, s->bias, col, s->n);
  }
};

}  // namespace overlace::ops::fused
