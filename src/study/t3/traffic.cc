// What one GPU reads and writes, in closed form.
#include <algorithm>
#include <cmath>

#include "src/base/ceil_div_pod.h"
#include "src/study/t3/waves.h"

namespace overlace::study::t3 {
namespace {

/// Share of a panel that is still cached when it is needed again, after `between` bytes passed through the cache.
double retained(double cache, double between) { return cache / (cache + between); }

}  // namespace

WaveShape wave_shape(int cus) {
  const int rows = static_cast<int>(std::sqrt(static_cast<double>(cus)));
  return {rows, base::ceil_div(cus, rows)};
}

double gemm_reads(const SubLayer& layer, const Machine& machine, bool output_is_cached) {
  const double m = static_cast<double>(layer.m), n = static_cast<double>(layer.n), k = static_cast<double>(layer.k);
  const double a = 2 * m * k, b = 2 * n * k;
  const double cache = machine.llc_MB * 1e6;
  const WaveShape shape = wave_shape(machine.cus);
  const double wave_m = shape.rows * kTile, wave_n = shape.cols * kTile;
  // Waves of rows x cols tiles walk along N first: A's panel is needed again by the next wave, B by the next
  // row of waves.
  const double panels_n = std::max(1.0, n / wave_n), panels_m = std::max(1.0, m / wave_m);
  const double cached_output = output_is_cached ? 2 * wave_m * std::min(n, wave_n) : 0;
  const double wave = 2 * k * (wave_m + wave_n) + cached_output;
  const double row = a / panels_m + b + cached_output * panels_n;
  return a * (1 + (panels_n - 1) * (1 - retained(cache, wave))) + b * (1 + (panels_m - 1) * (1 - retained(cache, row)));
}

Traffic unfused_traffic(const SubLayer& layer, const Machine& machine) {
  const double s = layer.output_bytes(), t = layer.ranks;
  return {.gemm_rd = gemm_reads(layer, machine, true),
          .gemm_wr = s,
          .rs_rd = (2 * t - 1) / t * s,
          .rs_wr = s,
          .ag_rd = (t - 1) / t * s,
          .ag_wr = (t - 1) / t * s};
}

Traffic fused_traffic(const SubLayer& layer, const Machine& machine, const Options& options) {
  const double s = layer.output_bytes(), t = layer.ranks;
  return {.gemm_rd = gemm_reads(layer, machine, !options.llc_bypass),
          .gemm_wr = (options.direct_rs ? 1 : t - 1) / t * s,
          .rs_rd = (options.direct_rs ? 0 : t - 2) / t * s,
          .rs_wr = (t - 1) / t * s,
          .ag_rd = (t - 1) / t * s,
          .ag_wr = (t - 1) / t * s};
}

}  // namespace overlace::study::t3
