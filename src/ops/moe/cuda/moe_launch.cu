#include <algorithm>

#include "src/base/ceil_div_pod.h"
#include "src/gemm_core/host.cuh"
#include "src/ops/moe/cuda/moe_launch.cuh"

namespace overlace::ops::moe {
namespace {

constexpr int kLagOfClusters = 2;  // ItemOrder::lag

base::Status validate(const Instance& instance, const MoeLayerArgs& g, int64_t hidden) {
  if (!instance.spec.chained)
    return base::invalid_argument("fused kernel: instance {}; wanted: one of two products", instance.name);
  const Operand operands[] = {{"w1", g.w1, g.w1_pitch, hidden}, {"w2", g.w2, g.w2_pitch, g.inter}};
  for (const Operand& x : operands) OVERLACE_TRY(validate_operand(x));
  OVERLACE_TRY(validate_stack("w1", g.w1_matrix_pitch, 2 * g.inter, hidden, g.w1_pitch));
  OVERLACE_TRY(validate_stack("w2", g.w2_matrix_pitch, hidden, g.inter, g.w2_pitch));
  if (g.hidden == nullptr || g.counter == nullptr || g.error == nullptr)
    return base::invalid_argument("fused kernel: hidden, counter or error is null; wanted: all of them");
  return {};
}

int32_t columns_of(const ConfigSpec& s, int64_t n, int halves) {
  return static_cast<int32_t>(base::ceil_div(n, int64_t{s.tile_n} * s.cluster_n / halves));
}

}  // namespace

base::Result<PreparedMoe> prepare_moe(const Instance& instance, const MoeLayerArgs& g, const LayerPod& layer,
                                      const FlowPod& flow) {
  const int64_t hidden = int64_t{layer.row_units} * kPerRowUnit, rows = layer.pool_rows;
  const int64_t experts = local_experts(layer);
  OVERLACE_TRY(validate(instance, g, hidden));
  const ConfigSpec& s = instance.spec;
  PreparedMoe out{};
  out.instance = &instance;
  out.params.layer = layer;
  out.params.flow = flow;
  out.params.counter = g.counter;
  out.params.row_weights = layer.row_weights;
  ChainedParams& gemm = out.params.gemm;
  OVERLACE_TRY(encode(as_a(s, {"pool", layer.pools[0], rows, hidden, hidden, 0, 0}), s.dtype, &gemm.a));
  OVERLACE_TRY(encode(as_a(s, {"hidden", g.hidden, rows, g.inter, g.inter, 0, 0}), s.dtype, &gemm.second_a));
  OVERLACE_TRY(
      encode_stack(as_b_stack(s, g.w1, experts, g.inter, hidden, g.w1_matrix_pitch, g.w1_pitch), s.dtype, &gemm.b));
  Stack w2 = as_b_stack(s, g.w2, experts, hidden, g.inter, g.w2_matrix_pitch, g.w2_pitch);
  w2.halves = 1;
  OVERLACE_TRY(encode_stack(w2, s.dtype, &gemm.second_b));
  Matrix inner = as_c(s, g.hidden, rows, g.inter, g.inter);
  inner.box_cols /= s.halves;
  OVERLACE_TRY(encode(inner, s.dtype, &gemm.c));
  OVERLACE_TRY(encode(as_c(s, layer.results, rows, hidden, hidden), s.dtype, &gemm.second_c));
  // Items say which rows they are; the order only has the rows of a tile.
  const int64_t all_rows[] = {0, rows};
  const int32_t up = columns_of(s, g.inter, s.halves), down = columns_of(s, hidden, 1);
  gemm.order = make_tile_order(TileOrderKind::grouped, 0, 1, all_rows, s.tile_m, up + down);
  gemm.num_tiles = count_tiles(gemm.order);  // at most
  gemm.k_blocks = static_cast<int32_t>(base::ceil_div(hidden, int64_t{kTileK}));
  gemm.second_k_blocks = static_cast<int32_t>(base::ceil_div(g.inter, int64_t{kTileK}));
  gemm.first_shard = static_cast<int32_t>(experts);
  gemm.error = g.error;
  gemm.timeout_ns = g.timeout_ns;
  const auto of_column = static_cast<uint32_t>(s.cluster() * kConsumerGroups);
  out.params.hidden_tiles = static_cast<uint32_t>(up) * of_column;
  out.params.ended_tiles = static_cast<uint32_t>(down) * of_column;
  out.params.flow.up = up;
  out.params.flow.down = down;
  const auto clusters = count_clusters(instance.kernel, s, instance.name);
  if (!clusters.ok()) return clusters.status();
  out.clusters = g.most_clusters > 0 ? std::min(g.most_clusters, *clusters) : *clusters;
  out.params.flow.lag = kLagOfClusters * out.clusters;
  return out;
}

base::Status launch_moe(const PreparedMoe& prepared, const TokensPod& call, cudaStream_t stream) {
  const Instance& instance = *prepared.instance;
  MoeParams params = prepared.params;
  params.call = call;
  return launch_grid({instance.kernel, instance.spec, prepared.clusters, /*uses_pdl=*/false}, &params, stream);
}

}  // namespace overlace::ops::moe
