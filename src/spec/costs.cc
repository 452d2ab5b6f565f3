#include "src/spec/costs.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "src/base/ceil_div_pod.h"
#include "src/spec/fused_pod.h"

namespace overlace::spec {
namespace {

constexpr double kBytesPerUs = 1e3;  // of a GB/s
constexpr double kOpsPerUs = 1e6;    // of a TFLOP/s

/// us for an amount at a rate; an unknown rate is no limit.
double at_rate(double amount, double rate) { return rate > 0 ? amount / rate : 0; }

}  // namespace

double GemmWork::flops() const {
  return 2 * static_cast<double>(m) * static_cast<double>(batch) * static_cast<double>(n) * static_cast<double>(k);
}

double GemmWork::bytes() const {
  const double rows = static_cast<double>(m) * static_cast<double>(batch), in = static_cast<double>(in_bytes);
  const double width = static_cast<double>(n), depth = static_cast<double>(k);
  return rows * (depth * in + width * static_cast<double>(out_bytes)) + width * depth * in;
}

double product_speedup(const Machine& machine, int64_t in_bytes) {
  return in_bytes == 1 && machine.is_gpu ? machine.gemm.fp8_speedup.value : 1;
}

GemmCost gemm_cost(const Machine& machine, const GemmWork& work) {
  GemmCost out;
  if (work.m <= 0 || work.n <= 0 || work.k <= 0 || work.batch <= 0) return out;
  const Machine::Gemm& gemm = machine.gemm;
  const double speedup = product_speedup(machine, work.in_bytes);
  const int64_t sms = std::max(machine.sms, 1);
  out.us = std::numeric_limits<double>::infinity();
  double busy = 1, flops = 0;  // SMs of the last full wave; of whole tiles
  for (const GemmTile& tile : gemm.tiles) {
    const int64_t whole = work.batch * base::ceil_div(work.m, tile.rows) * base::ceil_div(work.n, tile.cols);
    const bool splits = machine.is_gpu && work.m <= kSplitRows / work.batch;
    const int64_t parts = splits ? std::max<int64_t>(sms / whole, 1) : 1, tiles = whole * parts;
    const double waves = static_cast<double>(base::ceil_div(tiles, sms)),
                 depth = static_cast<double>(work.k) / static_cast<double>(parts);
    const double us =
        waves * (tile.wave_us.value + depth * tile.k_ns.value * 1e-3 / speedup) + (parts > 1 ? tile.wave_us.value : 0);
    if (us >= out.us) continue;
    out.us = us;
    out.waves = waves;
    busy = static_cast<double>(std::min(tiles, sms));
    flops = 2.0 * static_cast<double>(whole) * static_cast<double>(tile.rows * tile.cols) * static_cast<double>(work.k);
  }
  double stream = gemm.stream_GBps.value;
  if (const double each = gemm.sm_stream_GBps.value; each > 0)
    stream = stream > 0 ? std::min(stream, busy * each) : busy * each;
  out.start_us = gemm.start_us.value;
  const double b_bytes = static_cast<double>(work.n) * static_cast<double>(work.k) * static_cast<double>(work.in_bytes);
  const auto l2_bytes = static_cast<double>(machine.memory.l2_bytes);
  const bool is_cached = l2_bytes == 0 || b_bytes <= l2_bytes;
  const double bytes = work.bytes() + (is_cached ? 0 : b_bytes * static_cast<double>(work.batch - 1));
  out.us = out.start_us + std::max({out.us, at_rate(flops, speedup * gemm.sustained_TFLOPs.value * kOpsPerUs),
                                    at_rate(bytes, stream * kBytesPerUs)});
  return out;
}

double tile_us(const Machine& machine, int64_t rows, int64_t cols, int64_t k) {
  const auto us = [&](const GemmTile& t) { return t.wave_us.value + static_cast<double>(k) * t.k_ns.value * 1e-3; };
  const GemmTile* largest = &machine.gemm.tiles.front();
  for (const GemmTile& t : machine.gemm.tiles) {
    if (t.rows == rows && t.cols == cols) return us(t);
    if (t.rows * t.cols > largest->rows * largest->cols) largest = &t;
  }
  return us(*largest) * static_cast<double>(rows * cols) / static_cast<double>(largest->rows * largest->cols);
}

double fused_slowdown(const Machine& machine, int64_t shard, int64_t k) {
  constexpr int64_t kSectorBytes = 32, kElement = 2;  // other types have no fused kernel
  if (shard <= 0) return 1;
  const double rows = static_cast<double>(base::round_up(shard, kFusedTileRows));
  const double empty = 1 - static_cast<double>(shard) / rows, unaligned = machine.gemm.unaligned_rows.value;
  const bool is_slowed = unaligned > 0 && k * kElement % kSectorBytes != 0;
  return (is_slowed ? unaligned : 1) * (1 + machine.gemm.empty_rows.value * empty * empty);
}

GemmCost fused_cost(const Machine& machine, const FusedWork& work) {
  GemmCost out;
  if (work.shard <= 0 || work.ranks <= 0 || work.n <= 0 || work.k <= 0) return out;
  const int64_t slots = std::max(machine.sms / kFusedTileSms, 1);
  const int64_t row_tiles = base::ceil_div(work.shard, kFusedTileRows);
  const int64_t tiles = work.ranks * row_tiles * base::ceil_div(work.n, work.cols);
  const double flops =
      2.0 * static_cast<double>(tiles) * static_cast<double>(kFusedTileRows * work.cols) * static_cast<double>(work.k);
  out.waves = static_cast<double>(base::ceil_div(tiles, slots));
  out.start_us = machine.gemm.start_us.value;
  const double us = std::max(out.waves * tile_us(machine, kFusedTileRows / kFusedTileSms, work.cols, work.k),
                             at_rate(flops, machine.gemm.sustained_TFLOPs.value * kOpsPerUs));
  out.us = out.start_us + us;
  return out;
}

OneShotCost one_shot_cost(const Machine& machine, bool gathers, const GemmWork& work) {
  OneShotCost out;
  if (work.n <= 0 || work.k <= 0) return out;
  const int64_t sms = std::max(machine.sms, 2), tiles = base::ceil_div(work.n, kOneShotRows);
  const int64_t whole = base::ceil_div(tiles, sms), shared = base::ceil_div(tiles, sms / 2);  // tiles of an SM, of two
  const bool is_shared = shares_one_shot_tiles(work.m, tiles, sms);
  const double row = static_cast<double>(work.k * work.in_bytes), tile = static_cast<double>(kOneShotRows) * row;
  const double each = is_shared ? static_cast<double>(shared) * tile / 2 : static_cast<double>(whole) * tile;
  out.waves = static_cast<double>(is_shared ? shared : whole);
  const bool has_tiles = !machine.gemm.tiles.empty();
  const double product =
      has_tiles ? tile_us(machine, kOneShotRows, one_shot_tile_tokens(work.m), is_shared ? work.k / 2 : work.k) : 0;
  const Machine::FewRows& kernel = machine.few_rows;
  out.start_us = (gathers ? kernel.gather_start_us : kernel.sum_start_us).value;
  out.stream_us = std::max({at_rate(each, (gathers ? kernel.gather_sm_GBps : kernel.sum_sm_GBps).value * kBytesPerUs),
                            at_rate(static_cast<double>(work.n) * row, machine.gemm.stream_GBps.value * kBytesPerUs),
                            out.waves * product});
  return out;
}

bool shares_one_shot_tiles(int64_t m, int64_t tiles, int64_t sms) {
  if (m > kOneShotSplitTokens) return false;
  const auto each = [&](int64_t slots) { return base::ceil_div(tiles, std::max<int64_t>(1, slots)); };
  return each(sms / 2) < 2 * each(sms);
}

size_t choose_tile(std::span<const ClusterTile> tiles, std::span<const int64_t> row_offsets, int64_t n, int64_t sms) {
  size_t best = 0;
  double best_cost = std::numeric_limits<double>::infinity();
  for (size_t t = 0; t < tiles.size(); ++t) {
    int64_t rows = 0;  // of tiles, shard by shard
    for (size_t i = 1; i < row_offsets.size(); ++i)
      rows += base::ceil_div(row_offsets[i] - row_offsets[i - 1], tiles[t].rows);
    const double all = static_cast<double>(rows) * static_cast<double>(base::ceil_div(n, tiles[t].cols));
    const double waves = std::ceil(all / static_cast<double>(std::max<int64_t>(1, sms / tiles[t].sms)));
    const double cost = waves * static_cast<double>(tiles[t].cols * tiles[t].sms);
    if (cost > best_cost || (cost == best_cost && tiles[t].cols < tiles[best].cols)) continue;
    best = t;
    best_cost = cost;
  }
  return best;
}

int64_t gather_tile_cols(std::span<const int64_t> row_offsets, int64_t n, int sms) {
  constexpr auto tile = [](int64_t cols) { return ClusterTile{kFusedTileRows, cols, kFusedTileSms}; };
  constexpr ClusterTile kTiles[] = {tile(256), tile(224), tile(192), tile(160), tile(128)};  // instances.def
  return kTiles[choose_tile(kTiles, row_offsets, n, sms)].cols;
}

int64_t slot_tile_cols(const OpSpec& op) {
  constexpr int64_t kFewTiles = 256;
  const bool has_wide = op.dtype == DType::bf16 && op.out_dtype == DType::bf16 && op.b_layout == BLayout::nk;
  const int64_t tiles = base::ceil_div(op.m, kSlotTileRows) * base::ceil_div(op.n, kWideSlotTileCols);
  return has_wide && op.ranks == 2 && tiles > kFewTiles ? kWideSlotTileCols : kSlotTileCols;
}

double copy_us(const Machine& machine, double bytes) {
  if (bytes <= 0) return 0;
  const double rate = machine.copy.all_GBps.value > 0 ? machine.copy.all_GBps.value : machine.copy.peer_GBps.value;
  return machine.copy.start_us.value + at_rate(bytes, rate * kBytesPerUs);
}

double reduce_us(const Machine& machine, double bytes) {
  if (bytes <= 0) return 0;
  const Curve& measured = machine.memory.reduce_us;
  if (measured.empty()) return at_rate(bytes, machine.memory.reduce_GBps.value * kBytesPerUs);
  const double first = measured.points.front()[0];
  return measured.at(bytes) * std::min(1.0, bytes / first);
}

double local_copy_us(const Machine& machine, double bytes) {
  if (bytes <= 0) return 0;
  const Curve& measured = machine.copy.local_us;
  if (!measured.empty() && bytes >= measured.points.front()[0]) return measured.at(bytes);
  return machine.copy.start_us.value + at_rate(bytes, machine.copy.local_GBps.value * kBytesPerUs);
}

int unequal_shards(std::span<const int64_t> row_offsets) {
  int filled = 0;
  bool is_equal = true;
  for (size_t i = 1; i < row_offsets.size(); ++i) {
    const int64_t rows = row_offsets[i] - row_offsets[i - 1];
    is_equal = is_equal && rows == row_offsets[1] - row_offsets[0];
    filled += rows > 0 ? 1 : 0;
  }
  return is_equal ? 0 : filled;
}

std::optional<double> collective_us(const Machine& machine, std::string_view name, double bytes, int ranks,
                                    int shards_apart) {
  if (shards_apart > 0) {
    const std::optional<double> each = collective_us(machine, "all_reduce", bytes / shards_apart, ranks);
    return each ? std::optional(shards_apart * *each) : std::nullopt;
  }
  const Machine::Collectives& c = machine.collectives;
  const Curve* curve = name == "all_gather"       ? &c.all_gather_us
                       : name == "reduce_scatter" ? &c.reduce_scatter_us
                       : name == "all_reduce"     ? &c.all_reduce_us
                       : name == "all_to_all"     ? &c.all_to_all_us
                                                  : nullptr;
  if (curve == nullptr || curve->empty()) return std::nullopt;
  if (bytes <= 0) return 0;
  const auto sent = [](int n) { return static_cast<double>(n - 1) / n; };
  return curve->at(machine.ranks > 1 && ranks > 1 ? bytes * sent(ranks) / sent(machine.ranks) : bytes);
}

double contention(const Machine& machine, Load slowed, Load by) {
  for (const Contention& entry : machine.contention)
    if (entry.slowed == slowed && entry.by == by) return entry.factor.value;
  return 1;
}

}  // namespace overlace::spec
