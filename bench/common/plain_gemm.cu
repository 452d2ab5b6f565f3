#include <algorithm>
#include <cstring>

#include "bench/common/plain_gemm.cuh"
#include "src/base/ceil_div_pod.h"
#include "src/gemm_core/host.cuh"

namespace overlace::bench {
namespace {

base::Status validate(const Instance& instance, const GemmArgs& g) {
  const bool b_is_nk = instance.spec.b_major == BMajor::k;
  if (g.m < 1 || g.n < 1 || g.k < 1) {
    return base::invalid_argument("plain GEMM: m {}, n {}, k {}; wanted: all >= 1", g.m, g.n, g.k);
  }
  const Operand operands[] = {{"a", g.a, g.lda, g.k}, {"b", g.b, g.ldb, b_is_nk ? g.k : g.n}, {"c", g.c, g.ldc, g.n}};
  for (const Operand& x : operands) OVERLACE_TRY(validate_operand(x));
  if (g.swizzle < 1) return base::invalid_argument("plain GEMM: swizzle is {}; wanted: >= 1", g.swizzle);
  if (g.error == nullptr) return base::invalid_argument("plain GEMM: error is null; wanted: a word of device memory");
  return {};
}

}  // namespace

std::span<const Instance> plain_instances() {
  static const Instance rows[] = {
#define INSTANCE(kernel, name) {#name, kSpec_##name, kernel##_kernel_##name()},
#include "bench/common/plain_instances.def"
#undef INSTANCE
  };
  return rows;
}

const Instance* find_plain(std::string_view name) {
  const auto all = plain_instances();
  const auto found = std::ranges::find(all, name, &Instance::name);
  return found == all.end() ? nullptr : &*found;
}

base::Result<PreparedPlain> prepare_plain(const Instance& instance, const GemmArgs& g) {
  OVERLACE_TRY(validate(instance, g));
  const ConfigSpec& s = instance.spec;
  PreparedPlain out;
  out.instance = &instance;
  OVERLACE_TRY(encode(as_a(s, {"a", g.a, g.m, g.k, g.lda, 0, 0}), s.dtype, &out.params.a));
  OVERLACE_TRY(encode(as_b(s, g.b, g.n, g.k, g.ldb), s.dtype, &out.params.b));
  OVERLACE_TRY(encode(as_c(s, g.c, g.m, g.n, g.ldc), s.dtype, &out.params.c));
  const int64_t offsets[] = {0, g.m};
  out.params.order = make_tile_order(TileOrderKind::linear, 0, 1, offsets, s.tile_m * s.cluster_m,
                                     static_cast<int32_t>(base::ceil_div(g.n, s.tile_n * s.cluster_n)));
  out.params.order.sweep = g.sweep;
  out.params.order.swizzle = g.swizzle;
  out.params.num_tiles = count_tiles(out.params.order);
  out.params.k_blocks = static_cast<int32_t>(base::ceil_div(g.k, kTileK * s.split_k));
  out.params.error = g.error;
  out.params.timeout_ns = g.timeout_ns;
  const auto clusters = count_clusters(instance.kernel, s, instance.name);
  if (!clusters.ok()) return clusters.status();
  out.clusters = std::min(*clusters, out.params.num_tiles);
  return out;
}

base::Status launch_plain(const PreparedPlain& prepared, bool uses_pdl, cudaStream_t stream) {
  const Instance& instance = *prepared.instance;
  return launch_grid({instance.kernel, instance.spec, prepared.clusters, uses_pdl}, &prepared.params, stream);
}

}  // namespace overlace::bench
