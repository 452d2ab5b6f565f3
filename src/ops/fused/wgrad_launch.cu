#include <algorithm>
#include <limits>

#include "src/base/ceil_div_pod.h"
#include "src/gemm_core/host.cuh"
#include "src/ops/fused/wgrad_launch.cuh"
#include "src/spec/work_order_pod.h"

namespace overlace::ops::fused {
namespace {

struct Tiles {
  int64_t m, n;
};
Tiles tiles_of(const ConfigSpec& s, int64_t m, int64_t n) {
  return {base::ceil_div(m, int64_t{s.tile_m}), base::ceil_div(n, int64_t{s.tile_n})};
}

base::Status validate(const Instance& instance, const WgradArgs& g) {
  if (!instance.spec.groups_k)
    return base::invalid_argument("fused kernel: instance {}; wanted: one with groups of k", instance.name);
  if (g.m < 1 || g.n < 1 || g.k < 1 || g.matrices < 1)
    return base::invalid_argument("fused kernel: m {}, n {}, k {}, matrices {}; wanted: all >= 1", g.m, g.n, g.k,
                                  g.matrices);
  const Operand operands[] = {{"a", g.a, g.lda, g.m}, {"b", g.b, g.ldb, g.n}, {"c", g.c, g.ldc, g.n}};
  for (const Operand& x : operands) OVERLACE_TRY(validate_operand(x));
  OVERLACE_TRY(validate_stack("c", g.matrix_pitch, g.m, g.n, g.ldc));
  const Tiles tiles = tiles_of(instance.spec, g.m, g.n);
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  if (tiles.m * tiles.n > kMost / g.matrices)
    return base::invalid_argument("fused kernel: {} matrices of {} tiles; wanted: at most {} tiles", g.matrices,
                                  tiles.m * tiles.n, kMost);
  if (g.groups == nullptr || g.items == nullptr || g.counter == nullptr || g.error == nullptr)
    return base::invalid_argument("fused kernel: groups, items, counter or error is null; wanted: all of them");
  return {};
}

}  // namespace

std::vector<uint4> wgrad_items(const ConfigSpec& spec, int64_t m, int64_t n, int64_t matrices) {
  const Tiles tiles = tiles_of(spec, m, n);
  std::vector<uint4> out;
  for (int64_t matrix = 0; matrix < matrices; ++matrix)
    for (int64_t column = 0; column < tiles.n; ++column)
      for (int64_t row = 0; row < tiles.m; ++row)
        out.push_back({static_cast<uint32_t>(Work::product), static_cast<uint32_t>(row), static_cast<uint32_t>(column),
                       static_cast<uint32_t>(matrix)});
  out.push_back({kWorks, 0, 0, 0});
  return out;
}

base::Result<PreparedWgrad> prepare_wgrad(const Instance& instance, const WgradArgs& g) {
  OVERLACE_TRY(validate(instance, g));
  const ConfigSpec& s = instance.spec;
  PreparedWgrad out{};
  out.instance = &instance;
  GemmParams& gemm = out.params.gemm;
  OVERLACE_TRY(encode(as_a_of_groups(g.a, g.k, g.m, g.lda), s.dtype, &gemm.a));
  OVERLACE_TRY(encode(as_b(s, g.b, g.n, g.k, g.ldb), s.dtype, &gemm.b));
  OVERLACE_TRY(encode_stack(as_c_stack(s, g.c, g.matrices, g.m, g.n, g.matrix_pitch, g.ldc), s.dtype, &gemm.c));
  const Tiles tiles = tiles_of(s, g.m, g.n);
  const int64_t rows[] = {0, g.m};
  gemm.order = make_tile_order(TileOrderKind::grouped, 0, 1, rows, s.tile_m, static_cast<int32_t>(tiles.n));
  gemm.num_tiles = static_cast<int32_t>(tiles.m * tiles.n * g.matrices);
  gemm.groups = g.groups;
  gemm.error = g.error;
  gemm.timeout_ns = g.timeout_ns;
  out.params.items = g.items;
  out.params.num_items = gemm.num_tiles;
  out.params.counter = g.counter;
  const auto clusters = count_clusters(instance.kernel, s, instance.name);
  if (!clusters.ok()) return clusters.status();
  out.clusters = g.most_clusters > 0 ? std::min(g.most_clusters, *clusters) : *clusters;
  return out;
}

base::Status launch_wgrad(const PreparedWgrad& prepared, cudaStream_t stream) {
  const Instance& instance = *prepared.instance;
  return launch_grid({instance.kernel, instance.spec, prepared.clusters, /*uses_pdl=*/false}, &prepared.params, stream);
}

}  // namespace overlace::ops::fused
