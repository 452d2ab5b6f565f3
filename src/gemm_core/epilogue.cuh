// Results: consumers round them into staging buffers in shared memory, one thread per consumer warpgroup stores those.
#pragma once

#include "overlace/device/detail/bulk.cuh"
#include "src/device/ptx/shared.cuh"
#include "src/gemm_core/mainloop.cuh"

namespace overlace::gemm_core {

template <class Config>
struct Staging {
  static constexpr int kBuffers = Config::kSpec.store_buffers, kCols = Config::kSpec.store_cols();
  static constexpr bool kSwapsAb = Config::kSpec.swaps_ab;
  static constexpr int kPieces = kSwapsAb ? 1 : Config::kTileN / kCols;  // boxes per block of 64 rows of a tile
  static constexpr int kPairs = Config::kTileN / kPieces / 16;           // of a piece: 16 columns of the tile each
  static constexpr uint32_t kRowBytes = Config::kSpec.store_row_bytes();
  uint32_t out, staged_first, freed_first;  // this warpgroup's

  __device__ Staging(const Cta<Config>& cta, uint32_t group)
      : out(cta.shared + Config::kShared.out + group * kBuffers * Config::kSpec.store_bytes()),
        staged_first(cta.shared + Config::kShared.staged + group * kBuffers * 8),
        freed_first(cta.shared + Config::kShared.freed + group * kBuffers * 8) {}
  __device__ uint32_t buffer(uint32_t slot) const { return out + slot * Config::kSpec.store_bytes(); }
  __device__ uint32_t staged(uint32_t slot) const { return staged_first + slot * 8; }
  __device__ uint32_t freed(uint32_t slot) const { return freed_first + slot * 8; }
  /// Position of 16 bytes in a row, as the tensor map's swizzle has it.
  __device__ static uint32_t swizzled(uint32_t row, uint32_t unit) {
    return unit ^ (kRowBytes == 128 ? row % 8 : row / 2 % 4);
  }
  /// Where this lane's row of a pair's matrices goes in a buffer. Matrices 0 and 1 are rows 0 to 7 and 8 to 15 of this
  /// warp in the first 8 columns of the tile, 2 and 3 in the next 8.
  __device__ static uint32_t place_of(uint32_t pair) {
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
    const uint32_t row = kSwapsAb ? pair * 16 + lane / 16 * 8 + lane % 8 : warp * 16 + lane % 16;
    const uint32_t unit = kSwapsAb ? warp * 2 + lane / 8 % 2 : pair * 2 + lane / 16;
    return row * kRowBytes + swizzled(row, unit) * 16;
  }
};

__device__ __forceinline__ uint32_t round_pair(float low, float high, __nv_bfloat16) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<const uint32_t&>(pair);
}
__device__ __forceinline__ uint32_t round_pair(float low, float high, __half) {
  const __half2 pair = __floats2half2_rn(low, high);
  return reinterpret_cast<const uint32_t&>(pair);
}

__device__ __forceinline__ float2 unpack_pair(uint32_t pair, __nv_bfloat16) {
  return __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(pair));
}
__device__ __forceinline__ float2 unpack_pair(uint32_t pair, __half) {
  return __half22float2(reinterpret_cast<const __half2&>(pair));
}

/// This thread's sums of a piece, rounded, into a buffer.
template <class Config>
__device__ __forceinline__ void write_rounded(uint32_t to, const float* d) {
  using Element = typename Config::Element;
#pragma unroll
  for (int pair = 0; pair < Staging<Config>::kPairs; ++pair, d += 8) {
    const uint32_t at = to + Staging<Config>::place_of(static_cast<uint32_t>(pair));
    const uint32_t r[4] = {round_pair(d[0], d[1], Element{}), round_pair(d[2], d[3], Element{}),
                           round_pair(d[4], d[5], Element{}), round_pair(d[6], d[7], Element{})};
    if constexpr (Staging<Config>::kSwapsAb) {
      ptx::store_matrices_transposed(at, r[0], r[1], r[2], r[3]);
    } else {
      ptx::store_matrices(at, r[0], r[1], r[2], r[3]);
    }
  }
}

/// This thread's sums of a piece, as they are, into a buffer.
template <class Config>
__device__ __forceinline__ void write_whole(uint32_t to, const float* d) {
  const uint32_t lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16 + lane / 4;
#pragma unroll
  for (uint32_t i = 0; i < Staging<Config>::kCols / 8; ++i, d += 4) {  // 8 columns
    const uint32_t unit = i * 2 + lane % 4 / 2, in_unit = lane % 2 * 8;
    const auto place_in = [&](uint32_t of) {
      return to + of * Staging<Config>::kRowBytes + Staging<Config>::swizzled(of, unit) * 16 + in_unit;
    };
    ptx::store_pair(place_in(row), d[0], d[1]);
    ptx::store_pair(place_in(row + 8), d[2], d[3]);
  }
}
/// This thread's sums of a piece into a buffer, as the output has them.
template <class Config>
__device__ __forceinline__ void write_sums(uint32_t to, const float* d) {
  if constexpr (Config::kSpec.stores_fp32) {
    write_whole<Config>(to, d);
  } else {
    write_rounded<Config>(to, d);
  }
}

/// All threads of a consumer warpgroup: `write(buffer, d)` puts this thread's sums `d` of a piece of a block of 64 rows
/// into its buffer.
template <class Config, class Write>
__device__ __forceinline__ void stage_piece(const float* d, const Staging<Config>& staging,
                                            Ring<Staging<Config>::kBuffers>& ring, Deadline& deadline, Write write) {
  wait_barrier(staging.freed(ring.slot), ring.parity ^ 1, deadline);
  write(staging.buffer(ring.slot), d);
  ptx::fence_shared_to_bulk();
  __syncwarp();
  if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(staging.staged(ring.slot));
  ring.advance();
}

/// Instead of a piece: there is no item more.
template <class Config>
__device__ __forceinline__ void stage_end(const Staging<Config>& staging, const Ring<Staging<Config>::kBuffers>& ring,
                                          Deadline& deadline) {
  wait_barrier(staging.freed(ring.slot), ring.parity ^ 1, deadline);
  if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(staging.staged(ring.slot));
}

/// The warpgroups do not wait for each other: while one stages, the other's products keep the tensor cores busy.
template <class Config, class Write>
__device__ __forceinline__ void stage_tile(const Accumulators<Config>& sums, const Staging<Config>& staging,
                                           Ring<Staging<Config>::kBuffers>& ring, Deadline& deadline, Write write) {
#pragma unroll
  for (int block = 0; block < Config::kBlocksM; ++block) {
#pragma unroll
    for (int piece = 0; piece < Staging<Config>::kPieces; ++piece)
      stage_piece<Config>(&sums[block][piece * Staging<Config>::kPairs * 8], staging, ring, deadline, write);
  }
}

/// One thread per consumer warpgroup. `store.store(tile, row, col, shared)` issues the store of a buffer; `signal.done`
/// is told when all of this warpgroup's part of the tile is at its place.
template <class Tickets, class Config, class StoreOutput, class SignalDone>
__device__ void store_tiles(const GemmParams& p, const Cta<Config>& cta, uint32_t group, StoreOutput& store,
                            SignalDone& signal) {
  constexpr int kBuffers = Staging<Config>::kBuffers;
  const Staging<Config> staging(cta, group);
  Deadline deadline{p.error, p.timeout_ns};
  Ring<kBuffers> ring;
  bool is_first_round = true;
  int32_t dealt = cta.first_tile(group);
  Tile untold;
  bool is_untold = false;  // a tile whose stores are on their way
  const auto tell = [&] {
    ptx::bulk_wait<0>();
    signal.done(untold);
    is_untold = false;
  };
  for (uint32_t ordinal = 0;; ++ordinal, dealt += cta.tile_step()) {
    Taken taken;
    if constexpr (Tickets::kDraws) {
      if constexpr (SignalDone::kMayWait) {
        if (is_untold && !ptx::mbarrier_test_wait(staging.staged(ring.slot), ring.parity)) tell();
      }
      wait_barrier(staging.staged(ring.slot), ring.parity, deadline);
      taken = taken_of(cta, ordinal, deadline);
    } else if (dealt < p.num_tiles) {
      taken = {product_at(p, dealt), false};
    }
    if (taken.is_end) break;
    const Tile tile = tile_of(p, cta, taken.item);
    const int32_t row = tile.row + cta.first_row(group);
#pragma unroll 1
    for (int piece = 0; piece < Config::kBlocksM * Staging<Config>::kPieces; ++piece) {
      wait_barrier(staging.staged(ring.slot), ring.parity, deadline);
      store.store(tile, row + piece / Staging<Config>::kPieces * 64,
                  tile.col + piece % Staging<Config>::kPieces * Staging<Config>::kCols, staging.buffer(ring.slot));
      ptx::bulk_commit();
      ring.advance();
      // The oldest buffer is the next to be written; free once its store has read it.
      if (ring.slot == 0) is_first_round = false;
      ptx::bulk_wait_read<kBuffers - 1>();
      if (!is_first_round) ptx::mbarrier_arrive(staging.freed(ring.slot));
    }
    if constexpr (SignalDone::kMayWait) {
      if (is_untold) {
        ptx::bulk_wait<Config::kBlocksM * Staging<Config>::kPieces>();
        signal.done(untold);
      }
      untold = tile;
      is_untold = true;
    } else if constexpr (SignalDone::kNeedsCompletion) {
      ptx::bulk_wait<0>();
      signal.done(tile);
    }
  }
  if (is_untold) tell();
  ptx::bulk_wait_read<0>();
}

}  // namespace overlace::gemm_core
