#include <algorithm>
#include <cstring>

#include "src/base/ceil_div_pod.h"
#include "src/gemm_core/host.cuh"
#include "src/ops/fused/gather_one_shot_launch.cuh"

namespace overlace::ops::fused {
namespace {

base::Status validate(const Instance& instance, const OneShotGatherArgs& g) {
  const int64_t m = g.row_offsets.empty() ? 0 : g.row_offsets.back();
  OVERLACE_TRY(validate_exchange(g.state, g.row_offsets, g.error, static_cast<uint64_t>(m * g.k) * 2));
  if (g.claims == nullptr) return base::invalid_argument("fused kernel: claims is null; wanted: a word per CTA, 0");
  if (m < 1 || m > instance.spec.tile_n || g.n < 8 || g.n % 8 != 0 || g.k < 8 || g.k % 8 != 0) {
    return base::invalid_argument("fused kernel: m {}, n {}, k {}; wanted: m 1 to {}, n and k multiples of 8", m, g.n,
                                  g.k, instance.spec.tile_n);
  }
  const Operand operands[] = {{"shard", g.shard, g.lda, g.k}, {"b", g.b, g.ldb, g.k}, {"c", g.c, g.ldc, g.n}};
  for (const Operand& x : operands) OVERLACE_TRY(validate_operand(x));
  return {};
}

base::Status encode_maps(const ConfigSpec& s, const OneShotGatherArgs& g, OneShotGatherGemmParams* p) {
  const TeamPod& team = g.state.channel->team;
  const int64_t m = g.row_offsets.back();
  OVERLACE_TRY(encode(as_a(s, {"b", g.b, g.n, g.k, g.ldb, 0, 0}), s.dtype, &p->gemm.a));
  OVERLACE_TRY(encode(as_c(s, g.c, m, g.n, g.ldc), s.dtype, &p->gemm.c));
  for (uint64_t buffer = 0; buffer < 2; ++buffer) {
    const char* at = team.heap[team.rank] + g.state.inbox->offset + buffer * g.state.inbox->pitch;
    OVERLACE_TRY(encode(as_tokens(s, at, m, g.k, g.k), s.dtype, &p->gather.gathered[buffer]));
  }
  p->gemm.b = p->gather.gathered[0];
  return {};
}

/// CTAs whose warps push: one round of what each thread has in flight.
int pushing_ctas(const OneShotGatherArgs& g, int64_t rows) {
  constexpr int64_t kBytes = 512, kPerCta = 3 * 4;  // of a warp's load; of three warps, four loads each
  return static_cast<int>(std::max<int64_t>(1, base::ceil_div(rows * base::ceil_div(g.k * 2, kBytes), kPerCta)));
}

void fill_gather(const OneShotGatherArgs& g, OneShotGatherParams* out) {
  const TeamPod& team = g.state.channel->team;
  out->ready_id = g.state.first_id;
  out->slabs = 1;
  out->slab_blocks = static_cast<int32_t>(base::ceil_div(g.k, kTileK));
  out->shard = static_cast<const uint4*>(g.shard);
  out->shard_pitch = g.lda / 8;
  out->shard_rows = static_cast<int32_t>(rows_of(g.row_offsets, team.rank));
  out->first_row = static_cast<int32_t>(g.row_offsets[static_cast<size_t>(team.rank)]);
  out->row_units = static_cast<int32_t>(g.k / 8);
  out->bias = g.bias;
  out->n = static_cast<int32_t>(g.n);
}

}  // namespace

base::Result<PreparedOneShotGather> prepare_one_shot_gather(const Instance& instance, const OneShotGatherArgs& g) {
  OVERLACE_TRY(validate(instance, g));
  const ConfigSpec& s = instance.spec;
  PreparedOneShotGather out{};
  out.instance = &instance;
  GemmParams& gemm = out.params.gemm;
  OneShotGatherParams& x = out.params.gather;
  OVERLACE_TRY(encode_maps(s, g, &out.params));
  gemm.error = g.error;
  const auto most =
      prepare_swapped_tiles(instance, g.state.channel->team, {g.row_offsets.back(), g.n, g.k}, g.most_clusters, &gemm);
  if (!most.ok()) return most.status();
  const int clusters = grid_of(g, *most);
  fill_gather(g, &x);
  x.push_parts = std::min(clusters * s.cluster(), pushing_ctas(g, x.shard_rows));
  const auto pushing = static_cast<int>(base::ceil_div(x.push_parts, s.cluster()));
  out.clusters = std::min(clusters, std::max(gemm.num_tiles, pushing));
  x.claims = g.claims;
  fill_exchange(g.state, out.clusters * s.cluster() + x.push_parts, &x);
  return out;
}

base::Status launch_one_shot_gather(const PreparedOneShotGather& prepared, bool uses_pdl, cudaStream_t stream) {
  const Instance& instance = *prepared.instance;
  return launch_grid({instance.kernel, instance.spec, prepared.clusters, uses_pdl}, &prepared.params, stream);
}

}  // namespace overlace::ops::fused
