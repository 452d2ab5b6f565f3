// What single pieces of work take on a machine while nothing else runs.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "overlace/schedule.h"
#include "src/spec/machine.h"

namespace overlace::spec {

/// `batch` GEMMs of m x k by one k x n, as one kernel.
struct GemmWork {
  int64_t m = 0, n = 0, k = 0, batch = 1;
  int64_t in_bytes = 2, out_bytes = 2;  // of an element
  double flops() const;
  double bytes() const;  // operands and result, each once
};

/// Rows of products whose K the library splits.
inline constexpr int64_t kSplitRows = 64;

struct GemmCost {
  double us = 0;        // the whole
  double waves = 0;     // of tiles, rounded up; 0 if a rate is the limit
  double start_us = 0;  // included in `us`
};

/// How many times as fast operands of so many bytes are multiplied as those that the machine's tiles were measured
/// with.
double product_speedup(const Machine& machine, int64_t in_bytes);

/// By the tile whose waves are fastest for the shape. SMs multiply whole tiles, so the sustained rate counts their rows
/// and columns. GPUs: K of few rows (kSplitRows) is split between SMs that would have no tile; adding the parts up
/// takes what a wave takes besides K. A batch reads a B that is larger than the L2 cache once per GEMM. Nothing to
/// do: 0. Precondition: the machine has GEMM tiles.
GemmCost gemm_cost(const Machine& machine, const GemmWork& work);

/// All of K for one tile of rows x cols on one SM: of the machine's tile of that size, else in proportion to its
/// largest. Precondition: the machine has GEMM tiles.
double tile_us(const Machine& machine, int64_t rows, int64_t cols, int64_t k);

/// The GEMM of a fused-kernel family: shards of rows by n columns, on clusters of two SMs with a tile of
/// kFusedTileRows x `cols` that lies in one shard.
inline constexpr int64_t kFusedTileRows = 256;
inline constexpr int kFusedTileSms = 2;
struct FusedWork {
  int64_t shard = 0, ranks = 1, n = 0, k = 0, cols = 1;  // rows of a shard; columns of a tile
};
GemmCost fused_cost(const Machine& machine, const FusedWork& work);
/// How much longer its tiles take than full ones of aligned operands (Machine::Gemm::unaligned_rows, empty_rows); not
/// in fused_cost(), since what slows them otherwise may hide it.
double fused_slowdown(const Machine& machine, int64_t shard, int64_t k);

/// The kernels of `one_shot`: tiles of kOneShotRows rows of the weights (n, k) on one SM each; two SMs share a tile
/// along K where that leaves less to each. An SM streams its tiles at a rate of its own, all of them at most at the
/// machine's (Machine::FewRows), and multiplies them by all tokens of a tile (tile_us). What is sent is not in it.
struct OneShotCost {
  double start_us = 0;   // until weights stream, and from the last of them on
  double stream_us = 0;  // of the weights, or of their products where these take longer
  double waves = 0;      // of tiles; ag_gemm sends before them, the others behind each
};
OneShotCost one_shot_cost(const Machine& machine, bool gathers, const GemmWork& work);

/// Whether two SMs share each tile of a kernel of `one_shot` for m tokens along K: where that leaves less to an SM.
bool shares_one_shot_tiles(int64_t m, int64_t tiles, int64_t sms);

/// A tile of a cluster of SMs.
struct ClusterTile {
  int64_t rows = 0, cols = 0;
  int64_t sms = 1;
};
/// Index of the tile that multiplies shards of rows by n columns in the fewest waves times columns; of two alike the
/// wider, then the later. K does not matter: it is the same for every tile. Precondition: there is a tile.
size_t choose_tile(std::span<const ClusterTile> tiles, std::span<const int64_t> row_offsets, int64_t n, int64_t sms);
/// Columns of the tile that the kernels of ag_gemm take (B stored (N, K)), by choose_tile().
int64_t gather_tile_cols(std::span<const int64_t> row_offsets, int64_t n, int sms);

/// Columns of a tile of `tma_slot`, the same on all ranks: K may differ between them, and is not asked. 256 where two
/// ranks have more than 256 tiles of 256x256 (bf16, B stored (N, K)), else 128 (docs/design/fused_gemm.md).
int64_t slot_tile_cols(const OpSpec& op);

/// One of several copies of `bytes` that follow each other on a copy lane while all ranks send. 0 bytes: 0.
double copy_us(const Machine& machine, double bytes);

/// A reduction that reads and writes `bytes`, a copy inside the rank. 0 bytes: 0.
double reduce_us(const Machine& machine, double bytes);
double local_copy_us(const Machine& machine, double bytes);

/// Shards that have rows, where not all are equally long; else 0. `row_offsets`: of the shards, and the end.
int unequal_shards(std::span<const int64_t> row_offsets);

/// A library collective (all_gather, reduce_scatter, all_reduce, all_to_all) of `ranks`: Machine::Collectives says
/// which bytes count; its curves are of teams of Machine::ranks, and a rank sends (ranks - 1) / ranks of the bytes.
/// reduce_scatter of shards of unequal length takes as long as an all-reduce of each that has rows, `shards_apart` in
/// number, which it was when that was measured; 0: they are equal. None: the machine has no times of it.
std::optional<double> collective_us(const Machine& machine, std::string_view name, double bytes, int ranks,
                                    int shards_apart = 0);

/// How many times as long `slowed` takes beside `by`; 1 if the machine does not say.
double contention(const Machine& machine, Load slowed, Load by);

}  // namespace overlace::spec
