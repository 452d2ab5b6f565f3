#include <algorithm>
#include <cstring>

#include "src/base/ceil_div_pod.h"
#include "src/gemm_core/host.cuh"
#include "src/ops/fused/gather_launch.cuh"
#include "src/runtime/backend/cuda_peer/nodes.h"

namespace overlace::ops::fused {
namespace {

namespace node = runtime::cuda_peer;

int64_t columns_of_c(const GatherArgs& g) { return g.is_gated ? g.n / 2 : g.n; }

base::Status validate(const Instance& instance, const GatherArgs& g) {
  const GatherState& s = g.state;
  const uint64_t elements = static_cast<uint64_t>(g.row_offsets.empty() ? 0 : g.row_offsets.back() * g.k);
  OVERLACE_TRY(validate_exchange(s, g.row_offsets, g.error, elements * 2));
  if (g.n < 1 || g.k < 1 || g.k % 8 != 0 || g.row_offsets.back() < 1) {
    return base::invalid_argument("fused kernel: m {}, n {}, k {}; wanted: all >= 1, k a multiple of 8",
                                  g.row_offsets.back(), g.n, g.k);
  }
  if ((g.bias != nullptr || g.is_gated) && g.n % 2 != 0)
    return base::invalid_argument("fused kernel: n {} with a bias or gates; wanted: even", g.n);
  const bool b_is_nk = instance.spec.b_major == BMajor::k;
  const Operand operands[] = {
      {"shard", g.shard, g.lda, g.k}, {"b", g.b, g.ldb, b_is_nk ? g.k : g.n}, {"c", g.c, g.ldc, columns_of_c(g)}};
  for (const Operand& x : operands) OVERLACE_TRY(validate_operand(x));
  if (g.pieces < 1 || g.pieces > kMaxPieces || g.swizzle < 1) {
    return base::invalid_argument("fused kernel: {} pieces, swizzle {}; wanted: 1 to {} and >= 1", g.pieces, g.swizzle,
                                  kMaxPieces);
  }
  if (instance.spec.split_k > 1 && (g.arrival == Arrival::k_slab || g.bias != nullptr || g.is_gated)) {
    return base::error(Errc::not_supported, "fused kernel: {} with slabs, a bias or gates; wanted: rows, none",
                       instance.name);
  }
  if (g.transport == GatherTransport::store_own) {
    if (g.arrival == Arrival::k_slab) return {};
    return base::error(Errc::bad_schedule,
                       "fused kernel: arrival rows with transport store_own; wanted: k_slab, or ce");
  }
  if (s.totals == nullptr) return base::invalid_argument("fused kernel: totals is null; wanted: memory for ce");
  if ((s.channel->team.caps & node::kCapCopyThenFlag) != 0) return {};
  return base::error(Errc::not_supported, "fused kernel: transport ce: copies cannot signal here; wanted: store_own");
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
  out.slab_blocks = blocks_of_slab(blocks, out.slabs);
  out.waits = g.waits;
  out.shard = static_cast<const uint4*>(g.shard);
  out.shard_pitch = g.lda / 8;
  out.shard_rows = static_cast<int32_t>(rows_of(g.row_offsets, team.rank));
  out.first_row = static_cast<int32_t>(g.row_offsets[static_cast<size_t>(team.rank)]);
  out.row_units = static_cast<int32_t>(g.k / 8);
  out.bias = g.bias;
  out.n = static_cast<int32_t>(g.n);
  out.is_gated = g.is_gated;
  const int ctas = clusters * s.cluster();
  const bool pushes = g.transport == GatherTransport::store_own;
  // A part for every CTA that draws, so that one slab at a time has the link. A rank without rows has nothing to push,
  // but its peers wait for the signals.
  out.push_parts = pushes ? ctas : 0;
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

base::Status launch_gather(const PreparedGather& prepared, bool uses_pdl, cudaStream_t stream) {
  const Instance& instance = *prepared.instance;
  return launch_grid({instance.kernel, instance.spec, prepared.clusters, uses_pdl}, &prepared.params, stream);
}

}  // namespace overlace::ops::fused
