#pragma nv_diag_suppress 1679  // nvcc loses the push of overlace/schedule.h, and warns of its pop
#include <algorithm>
#include <cstring>

#include "src/gemm_core/host.cuh"
#include "src/ops/fused/scatter_launch.cuh"
#include "src/spec/items.h"

namespace overlace::ops::fused {
namespace {

bool is_counted(const ScatterArgs& g) { return g.done.words != nullptr; }
TileOrderKind order_kind(const ScatterArgs& g) {
  return is_counted(g) ? TileOrderKind::own_last : TileOrderKind::woven;
}

base::Status validate(const Instance& instance, const ScatterArgs& g) {
  const uint64_t bytes = g.row_offsets.empty() ? 0 : scatter_inbox_bytes(g.row_offsets, g.n);
  OVERLACE_TRY(validate_exchange(g.state, g.row_offsets, g.error, bytes));
  if (g.n < 1 || g.n % 8 != 0 || g.k < 1 || g.row_offsets.back() < 1) {
    return base::invalid_argument("fused kernel: m {}, n {}, k {}; wanted: all >= 1, n a multiple of 8",
                                  g.row_offsets.back(), g.n, g.k);
  }
  const bool b_is_nk = instance.spec.b_major == BMajor::k;
  const Operand operands[] = {{"a", g.a, g.lda, g.k}, {"b", g.b, g.ldb, b_is_nk ? g.k : g.n}, {"c", g.c, g.ldc, g.n}};
  for (const Operand& x : operands) OVERLACE_TRY(validate_operand(x));
  if (g.groups < 1 || g.groups > kMaxGroups || g.swizzle < 1) {
    return base::invalid_argument("fused kernel: {} groups, swizzle {}; wanted: 1 to {} and >= 1", g.groups, g.swizzle,
                                  kMaxGroups);
  }
  const int64_t boxes = int64_t{g.state.channel->team.size} * kConsumerGroups;
  if (boxes <= int64_t{instance.spec.stages} * instance.spec.stage_boxes()) return {};
  return base::error(Errc::not_supported, "fused kernel: sources of {} ranks do not fit into the stages of {}",
                     g.state.channel->team.size, instance.name);
}

base::Status encode_maps(const ConfigSpec& s, const ScatterArgs& g, ScatterGemmParams* p) {
  const TeamPod& team = g.state.channel->team;
  const InboxPod& inbox = *g.state.inbox;
  const int64_t slot_rows = longest_rows(g.row_offsets), mine = rows_of(g.row_offsets, team.rank);
  const int64_t first = g.sums_travel || is_counted(g) ? g.row_offsets[static_cast<size_t>(team.rank)] : 0;
  char* const result = static_cast<char*>(g.c) + first * g.ldc * 2;
  OVERLACE_TRY(encode(as_a(s, {"a", g.a, g.row_offsets.back(), g.k, g.lda, 0, 0}), s.dtype, &p->gemm.a));
  OVERLACE_TRY(encode(as_b(s, g.b, g.n, g.k, g.ldb), s.dtype, &p->gemm.b));
  OVERLACE_TRY(encode(as_c(s, result, std::max<int64_t>(mine, 1), g.n, g.ldc), s.dtype, &p->gemm.c));
  for (uint64_t buffer = 0; buffer < 2; ++buffer) {
    for (int peer = 0; peer < team.size; ++peer) {
      const int64_t rows = rows_of(g.row_offsets, peer);
      if (peer == team.rank || rows == 0) continue;
      char* const in_slot = team.heap[peer] + inbox.offset + buffer * inbox.pitch +
                            slot_of(team.rank, peer, team.size) * slot_rows * g.n * 2;
      char* const here = static_cast<char*>(g.c) + g.row_offsets[static_cast<size_t>(peer)] * g.ldc * 2;
      OVERLACE_TRY(is_counted(g) ? encode(as_c(s, here, rows, g.n, g.ldc), s.dtype, &p->scatter.to[buffer][peer])
                                 : encode(as_c(s, in_slot, rows, g.n, g.n), s.dtype, &p->scatter.to[buffer][peer]));
    }
    const char* from = team.heap[team.rank] + inbox.offset + buffer * inbox.pitch;
    const int64_t rows = std::max(team.size - 1, 1) * slot_rows;
    OVERLACE_TRY(encode(as_c(s, from, rows, g.n, g.n), s.dtype, &p->scatter.from[buffer]));
  }
  return {};
}

/// Encodes the maps that AllReduce has besides, whose sums travel.
base::Status encode_sums(const ConfigSpec& s, const ScatterArgs& g, ScatterGemmParams* p) {
  const TeamPod& team = g.state.channel->team;
  const int64_t first = g.row_offsets[static_cast<size_t>(team.rank)], mine = rows_of(g.row_offsets, team.rank);
  for (int peer = 0; peer < team.size; ++peer) {
    const int64_t rows = rows_of(g.row_offsets, peer), at = g.row_offsets[static_cast<size_t>(peer)];
    if (rows > 0)
      OVERLACE_TRY(encode(as_c(s, static_cast<char*>(g.c) + at * g.ldc * 2, rows, g.n, g.ldc), s.dtype,
                          &p->scatter.result[peer]));
    for (uint64_t buffer = 0; buffer < 2; ++buffer) {
      char* const sums = team.heap[peer] + g.sums_offset + buffer * g.state.inbox->pitch;
      if (peer == team.rank) {
        OVERLACE_TRY(encode(as_c(s, sums, g.row_offsets.back(), g.n, g.n), s.dtype, &p->scatter.sums_from[buffer]));
      } else if (mine > 0) {
        OVERLACE_TRY(
            encode(as_c(s, sums + first * g.n * 2, mine, g.n, g.n), s.dtype, &p->scatter.sums_to[buffer][peer]));
      }
    }
  }
  return {};
}

/// Bands, and the list of items.
base::Status set_items(const ScatterArgs& g, int clusters, ScatterGemmParams* p) {
  TileOrder& order = p->gemm.order;
  ScatterParams& out = p->scatter;
  if (is_counted(g)) {
    out.groups = spec::chunk_groups(order, g.groups);
    order.band = out.groups.rows;
    out.work = make_product_order(order);
  } else {
    out.groups = spec::woven_groups(&order, g.groups, g.sums_travel);
    out.work = make_work_order(order, clusters, g.sums_travel);
  }
  const auto items = g.state.lists->of(order, is_counted(g) ? nullptr : &out.work);
  if (!items.ok()) return items.status();
  out.items = *items;
  return {};
}

void fill_scatter(const ConfigSpec& s, const ScatterArgs& g, int clusters, ScatterGemmParams* p) {
  const TileOrder& order = p->gemm.order;
  ScatterParams& out = p->scatter;
  fill_exchange(g.state, clusters * s.cluster(), &out);
  out.sums_travel = g.sums_travel;
  out.ready_id = g.ready_id;
  out.arrive_id = g.state.first_id;
  out.adds_per_tile = s.cluster() * kConsumerGroups;
  for (int r = 0; r < order.size; ++r) out.row_tiles[r] = order.first_tile[r + 1] - order.first_tile[r];
  out.slot_rows = static_cast<int32_t>(longest_rows(g.row_offsets));
  out.n = static_cast<int32_t>(g.n);
  out.alpha = g.alpha;
  out.bias = g.bias;
  out.done = g.done;
}

}  // namespace

uint64_t scatter_inbox_bytes(std::span<const int64_t> row_offsets, int64_t n) {
  const auto senders = static_cast<int64_t>(row_offsets.size()) - 2;
  return static_cast<uint64_t>(std::max<int64_t>(senders, 1) * longest_rows(row_offsets) * n) * 2;
}

base::Result<PreparedScatter> prepare_scatter(const Instance& instance, const ScatterArgs& g) {
  OVERLACE_TRY(validate(instance, g));
  const ConfigSpec& s = instance.spec;
  PreparedScatter out{};
  out.instance = &instance;
  GemmParams& gemm = out.params.gemm;
  OVERLACE_TRY(encode_maps(s, g, &out.params));
  if (g.sums_travel) OVERLACE_TRY(encode_sums(s, g, &out.params));
  const auto clusters = prepare_tiles(instance, order_kind(g), g, g.state, &gemm);
  if (!clusters.ok()) return clusters.status();
  OVERLACE_TRY(set_items(g, *clusters, &out.params));
  out.clusters = grid_of(g, *clusters);
  fill_scatter(s, g, out.clusters, &out.params);
  return out;
}

base::Status prepare_scatter_items(const Instance& instance, const ScatterArgs& g) {
  ScatterGemmParams params{};
  const auto clusters = prepare_tiles(instance, order_kind(g), g, g.state, &params.gemm);
  if (!clusters.ok()) return clusters.status();
  return set_items(g, *clusters, &params);
}

base::Status launch_scatter(const PreparedScatter& prepared, bool uses_pdl, cudaStream_t stream) {
  const Instance& instance = *prepared.instance;
  return launch_grid({instance.kernel, instance.spec, prepared.clusters, uses_pdl}, &prepared.params, stream);
}

}  // namespace overlace::ops::fused
