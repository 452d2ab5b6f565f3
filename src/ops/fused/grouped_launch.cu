#include <algorithm>

#include "src/base/ceil_div_pod.h"
#include "src/gemm_core/host.cuh"
#include "src/ops/fused/grouped_launch.cuh"

namespace overlace::ops::fused {
namespace {

base::Status validate(const Instance& instance, const GroupedArgs& g) {
  if (instance.spec.halves == 0)
    return base::invalid_argument("fused kernel: instance {}; wanted: one for a stack of matrices", instance.name);
  if (g.m < 1 || g.n < 1 || g.k < 1 || g.matrices < 1)
    return base::invalid_argument("fused kernel: m {}, n {}, k {}, matrices {}; wanted: all >= 1", g.m, g.n, g.k,
                                  g.matrices);
  const bool is_k_major = instance.spec.b_major == BMajor::k;
  const int64_t b_rows = is_k_major ? g.n * instance.spec.halves : g.k, b_columns = is_k_major ? g.k : g.n;
  const Operand operands[] = {{"a", g.a, g.lda, g.k}, {"b", g.b, g.ldb, b_columns}, {"c", g.c, g.ldc, g.n}};
  for (const Operand& x : operands) OVERLACE_TRY(validate_operand(x));
  if (g.m % instance.spec.tile_m != 0)
    return base::invalid_argument("fused kernel: m is {}; wanted: a multiple of {}", g.m, instance.spec.tile_m);
  OVERLACE_TRY(validate_stack("b", g.matrix_pitch, b_rows, b_columns, g.ldb));
  if (g.items == nullptr || g.num_items == nullptr || g.counter == nullptr || g.error == nullptr)
    return base::invalid_argument("fused kernel: items, num_items, counter or error is null; wanted: all of them");
  if (instance.spec.halves == 2 && g.row_weights == nullptr)
    return base::invalid_argument("fused kernel: row_weights is null; wanted: a weight of each row");
  return {};
}

}  // namespace

base::Result<PreparedGrouped> prepare_grouped(const Instance& instance, const GroupedArgs& g) {
  OVERLACE_TRY(validate(instance, g));
  const ConfigSpec& s = instance.spec;
  PreparedGrouped out{};
  out.instance = &instance;
  GemmParams& gemm = out.params.gemm;
  OVERLACE_TRY(encode(as_a(s, {"a", g.a, g.m, g.k, g.lda, 0, 0}), s.dtype, &gemm.a));
  OVERLACE_TRY(encode_stack(as_b_stack(s, g.b, g.matrices, g.n, g.k, g.matrix_pitch, g.ldb), s.dtype, &gemm.b));
  Matrix c = as_c(s, g.c, g.m, g.n, g.ldc);
  c.box_cols /= s.halves;
  OVERLACE_TRY(encode(c, s.stores_fp32 ? DType::fp32 : s.dtype, &gemm.c));
  // Items say which rows they are; the order only has the rows of a tile.
  const int64_t rows[] = {0, g.m};
  const auto columns = int64_t{s.tile_n} * s.cluster_n / s.halves;
  gemm.order =
      make_tile_order(TileOrderKind::grouped, 0, 1, rows, s.tile_m, static_cast<int32_t>(base::ceil_div(g.n, columns)));
  gemm.num_tiles = count_tiles(gemm.order);  // at most
  gemm.k_blocks = static_cast<int32_t>(base::ceil_div(g.k, kTileK));
  gemm.error = g.error;
  gemm.timeout_ns = g.timeout_ns;
  out.params.items = g.items;
  out.params.num_items = g.num_items;
  out.params.counter = g.counter;
  out.params.row_weights = g.row_weights;
  const auto clusters = count_clusters(instance.kernel, s, instance.name);
  if (!clusters.ok()) return clusters.status();
  out.clusters = g.most_clusters > 0 ? std::min(g.most_clusters, *clusters) : *clusters;
  return out;
}

base::Status launch_grouped(const PreparedGrouped& prepared, cudaStream_t stream) {
  const Instance& instance = *prepared.instance;
  return launch_grid({instance.kernel, instance.spec, prepared.clusters, /*uses_pdl=*/false}, &prepared.params, stream);
}

}  // namespace overlace::ops::fused
