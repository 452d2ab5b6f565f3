// Waits for what peers send, piece by piece, and finds A: own rows in the caller's tensor, others in the inbox.
#pragma once

#include "src/gemm_core/mainloop.cuh"
#include "src/ops/fused/exchange.cuh"

namespace overlace::ops::fused {

/// Waits of the load thread. A shard's pieces are asked for once per CTA, in the order in which they come; the order of
/// tiles never returns to a shard. After a failure no peer is waited for: the pipeline runs on with what memory holds.
struct WaitChunks {
  static constexpr bool kWaits = true, kDrains = true;  // who is done gives credit
  const GatherParams* g;
  const TileOrder* order;
  const CUtensorMap* gathered = nullptr;
  int32_t shard = -1, seen = 0;            // pieces of `shard` that are there
  int32_t next_block = 0, next_piece = 0;  // of the tile: at which k block to ask for what
  bool has_failed = false;

  __device__ void begin() { gathered = &g->gathered[buffer_of_call(*g)]; }

  template <class Config>
  __device__ Source source(const GemmParams& p, const Tile& tile) const {
    if (is_own(tile)) return {&p.a, tile.row - order->row_begin[order->rank]};
    return {gathered, tile.row};
  }

  template <class Config>
  __device__ void wait(const Tile& tile, int32_t k, Deadline&) {
    if (rows_awaited_by(is_own(tile)).whose == Whose::nobody || !g->waits) return;
    if (k == 0) begin_tile(tile, Config::kTileM);
    if (k != next_block) return;
    while (seen <= next_piece && !has_failed) {
      const uint32_t id = g->ready_id + static_cast<uint32_t>(seen);
      const uint64_t want = device::ticket(g->channel, shard, id) + kShares;
      has_failed = device::wait_ge_async(g->channel, shard, id, want) != Errc::ok;
      ++seen;
    }
    next_block += g->slab_blocks;
    ++next_piece;
  }

  /// All lanes of the load warp, once its loads are over.
  __device__ void end() const { arrive(*g); }

 private:
  __device__ bool is_own(const Tile& tile) const { return tile.at.shard == order->rank; }
  __device__ void begin_tile(const Tile& tile, int32_t tile_rows) {
    if (tile.at.shard != shard) {
      shard = tile.at.shard;
      seen = 0;
    }
    next_block = next_piece = 0;
    if (g->chunks > 1) {
      const int32_t last = (tile.row - order->row_begin[shard] + tile_rows - 1) / g->chunk_rows;
      next_piece = last < g->chunks ? last : g->chunks - 1;
    }
  }
};

}  // namespace overlace::ops::fused
