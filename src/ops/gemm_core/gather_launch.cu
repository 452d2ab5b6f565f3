#include <algorithm>
#include <cstring>
#include <vector>

#include "src/base/ceil_div_pod.h"
#include "src/ops/gemm_core/gather_launch.cuh"
#include "src/ops/gemm_core/host.cuh"
#include "src/runtime/backend/cuda_peer/nodes.h"
#include "src/runtime/backend/cuda_peer/stream_ops.h"

namespace overlace::ops::gemm_core {
namespace {

namespace node = runtime::cuda_peer;

int64_t columns_of_c(const GatherArgs& g) { return g.is_gated ? g.n / 2 : g.n; }

base::Status validate(const Instance& instance, const GatherArgs& g) {
  const GatherState& s = g.state;
  const uint64_t elements = static_cast<uint64_t>(g.row_offsets.empty() ? 0 : g.row_offsets.back() * g.k);
  OVERLACE_TRY(validate_exchange(s, g.row_offsets, g.error, elements * 2));
  if (g.n < 1 || g.k < 1 || g.k % 8 != 0 || g.row_offsets.back() < 1) {
    return base::invalid_argument("gemm_core: m {}, n {}, k {}; wanted: all >= 1, k a multiple of 8",
                                  g.row_offsets.back(), g.n, g.k);
  }
  if ((g.bias != nullptr || g.is_gated) && g.n % 2 != 0)
    return base::invalid_argument("gemm_core: n {} with a bias or gates; wanted: even", g.n);
  const bool b_is_nk = instance.spec.b_major == BMajor::k;
  const Operand operands[] = {
      {"shard", g.shard, g.lda, g.k}, {"b", g.b, g.ldb, b_is_nk ? g.k : g.n}, {"c", g.c, g.ldc, columns_of_c(g)}};
  for (const Operand& x : operands) OVERLACE_TRY(validate_operand(x));
  if (g.pieces < 1 || g.pieces > kMaxPieces || g.swizzle < 1) {
    return base::invalid_argument("gemm_core: {} pieces, swizzle {}; wanted: 1 to {} and >= 1", g.pieces, g.swizzle,
                                  kMaxPieces);
  }
  if (instance.spec.split_k > 1 && (g.arrival == Arrival::k_slab || g.bias != nullptr || g.is_gated)) {
    return base::error(Errc::not_supported, "gemm_core: {} with slabs, a bias or gates; wanted: rows, none",
                       instance.name);
  }
  if (g.transport == GatherTransport::store_own) {
    if (g.arrival == Arrival::k_slab) return {};
    return base::error(Errc::bad_schedule, "gemm_core: arrival rows with transport store_own; wanted: k_slab, or ce");
  }
  if (s.totals == nullptr) return base::invalid_argument("gemm_core: totals is null; wanted: memory for ce");
  if ((s.channel->team.caps & node::kCapCopyThenFlag) != 0) return {};
  return base::error(Errc::not_supported, "gemm_core: transport ce: copies cannot signal here; wanted: store_own");
}

base::Status encode_maps(const ConfigSpec& s, const GatherArgs& g, GatherGemmParams* p) {
  const TeamPod& team = g.state.channel->team;
  const int64_t m = g.row_offsets.back(), mine = std::max<int64_t>(rows_of(g.row_offsets, team.rank), 1);
  OVERLACE_TRY(encode(as_a(s, {"shard", g.shard, mine, g.k, g.lda, 0, 0}), s.dtype, &p->gemm.a));
  OVERLACE_TRY(encode(as_b(s, g.b, g.n, g.k, g.ldb), s.dtype, &p->gemm.b));
  p->gemm.c = CUtensorMap{};
  for (int buffer = 0; buffer < 2; ++buffer) {
    const char* at =
        team.heap[team.rank] + g.state.inbox->offset + static_cast<uint64_t>(buffer) * g.state.inbox->pitch;
    OVERLACE_TRY(encode(as_a(s, {"inbox", at, m, g.k, g.k, 0, 0}), s.dtype, &p->gather.gathered[buffer]));
  }
  for (int shard = 0; shard < team.size; ++shard) {
    char* at = static_cast<char*>(g.c) + g.row_offsets[static_cast<size_t>(shard)] * g.ldc * 2;
    if (rows_of(g.row_offsets, shard) == 0) continue;
    Matrix c = as_c(s, at, rows_of(g.row_offsets, shard), columns_of_c(g), g.ldc);
    if (g.is_gated) c.box_cols /= 2;
    OVERLACE_TRY(encode(c, s.dtype, &p->gather.c[shard]));
  }
  return {};
}

void fill_gather(const ConfigSpec& s, const GatherArgs& g, int clusters, GatherGemmParams* p) {
  const TeamPod& team = g.state.channel->team;
  GatherParams& out = p->gather;
  out.ready_id = g.state.first_id;
  out.totals = g.transport == GatherTransport::ce ? g.state.totals : nullptr;
  const int64_t longest = longest_rows(g.row_offsets);
  const int32_t blocks = p->gemm.k_blocks;
  out.chunks = g.arrival == Arrival::rows ? g.pieces : 1;
  out.slabs = g.arrival == Arrival::rows ? 1 : g.pieces;
  out.chunk_rows = static_cast<int32_t>(base::ceil_div(base::ceil_div(longest, out.chunks), s.tile_m)) * s.tile_m;
  out.slab_blocks = static_cast<int32_t>(base::ceil_div(blocks, out.slabs));
  out.waits = g.waits;
  out.shard = static_cast<const uint4*>(g.shard);
  out.shard_pitch = g.lda / 8;
  out.shard_rows = static_cast<int32_t>(rows_of(g.row_offsets, team.rank));
  out.first_row = static_cast<int32_t>(g.row_offsets[static_cast<size_t>(team.rank)]);
  out.row_units = static_cast<int32_t>(g.k / 8);
  out.bias = g.bias;
  out.n = static_cast<int32_t>(g.n);
  out.is_gated = g.is_gated;
  const int32_t own =
      (p->gemm.order.first_tile[team.rank + 1] - p->gemm.order.first_tile[team.rank]) * p->gemm.order.tiles_n;
  const int ctas = clusters * s.cluster();
  // A rank without rows has nothing to push, but its peers wait for the signals.
  const bool pushes = g.transport == GatherTransport::store_own;
  out.push_parts = pushes ? std::max(1, std::min(clusters, own)) * s.cluster() : 0;
  fill_exchange(g.state, pushes ? 2 * ctas : ctas, &out);
}

}  // namespace

base::Result<PreparedGather> prepare_gather(const Instance& instance, const GatherArgs& g) {
  OVERLACE_TRY(validate(instance, g));
  const ConfigSpec& s = instance.spec;
  PreparedGather out{};
  out.instance = &instance;
  out.arrival = g.arrival;
  out.transport = g.transport;
  out.k_bytes = g.k * 2;
  out.shard_pitch_bytes = g.lda * 2;
  GemmParams& gemm = out.params.gemm;
  OVERLACE_TRY(encode_maps(s, g, &out.params));
  const auto clusters = prepare_tiles(instance, TileOrderKind::rotated, g, g.state, &gemm);
  if (!clusters.ok()) return clusters.status();
  out.clusters = grid_of(g, *clusters);
  const auto items = g.state.lists->of(gemm.order, nullptr);
  if (!items.ok()) return items.status();
  out.params.gather.items = *items;
  fill_gather(s, g, out.clusters, &out.params);
  return out;
}

base::Status prepare_gather_items(const Instance& instance, const GatherArgs& g) {
  GemmParams gemm{};
  const auto clusters = prepare_tiles(instance, TileOrderKind::rotated, g, g.state, &gemm);
  if (!clusters.ok()) return clusters.status();
  return g.state.lists->of(gemm.order, nullptr).status();
}

base::Status launch_gather(const PreparedGather& prepared, bool starts_early, cudaStream_t stream) {
  const Instance& instance = *prepared.instance;
  return launch_grid({instance.kernel, instance.spec, prepared.clusters, starts_early}, &prepared.params, stream);
}

namespace {

/// One piece of the own shard to one peer.
base::Status copy_piece(const PreparedGather& prepared, uint64_t epoch, int piece, int peer, cudaStream_t copies) {
  const GatherParams& g = prepared.params.gather;
  const TeamPod& team = g.channel.team;
  int64_t row = 0, rows = g.shard_rows, col = 0, bytes = prepared.k_bytes;
  if (prepared.arrival == Arrival::rows) {
    row = std::min<int64_t>(int64_t{piece} * g.chunk_rows, rows);
    const bool is_last = piece + 1 == g.chunks;
    rows = is_last ? rows - row : std::min<int64_t>(g.chunk_rows, rows - row);
  } else {
    const int64_t width = int64_t{g.slab_blocks} * kTileK * 2;
    col = std::min(piece * width, bytes);
    bytes = std::min(width, bytes - col);
  }
  if (rows > 0 && bytes > 0) {
    const int64_t first = prepared.params.gemm.order.row_begin[team.rank] + row;
    char* to = team.heap[peer] + g.inbox.buffer_offset(epoch) + first * prepared.k_bytes + col;
    const char* from = reinterpret_cast<const char*>(g.shard) + row * prepared.shard_pitch_bytes + col;
    const auto size = [](int64_t x) { return static_cast<size_t>(x); };
    if (bytes == prepared.shard_pitch_bytes && bytes == prepared.k_bytes) {
      OVERLACE_TRY(node::stream_put(to, from, size(bytes * rows), copies));
    } else {
      OVERLACE_TRY(node::stream_put_2d(to, size(prepared.k_bytes), from, size(prepared.shard_pitch_bytes), size(bytes),
                                       size(rows), copies));
    }
  }
  const auto id = g.ready_id + static_cast<uint32_t>(piece);
  return node::stream_post(node::slot_address(team, peer, id, team.rank), g.totals + piece * team.size + peer, copies);
}

}  // namespace

base::Status queue_copies(const PreparedGather& prepared, uint64_t epoch, cudaStream_t copies) {
  const GatherParams& g = prepared.params.gather;
  const TeamPod& team = g.channel.team;
  const int pieces = count_pieces(g), hops = team.size - 1;
  for (int i = 0; i < pieces * hops; ++i) {
    // Rows: all of the shard to who needs it first. Slabs: each slab to everybody, who all need it now.
    const bool by_peer = prepared.arrival == Arrival::rows;
    const int hop = 1 + (by_peer ? i / pieces : i % hops), piece = by_peer ? i % pieces : i / hops;
    OVERLACE_TRY(copy_piece(prepared, epoch, piece, (team.rank - hop + team.size) % team.size, copies));
  }
  return node::stream_post(node::slot_address(team, team.rank, g.ready_id, team.rank), g.totals + team.rank, copies);
}

}  // namespace overlace::ops::gemm_core
