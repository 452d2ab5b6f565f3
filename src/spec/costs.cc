#include "src/spec/costs.h"

#include <algorithm>
#include <limits>

namespace overlace::spec {
namespace {

constexpr double kBytesPerUs = 1e3;  // of a GB/s
constexpr double kOpsPerUs = 1e6;    // of a TFLOP/s

int64_t pieces(int64_t extent, int64_t piece) { return (extent + piece - 1) / piece; }

/// us for an amount at a rate; an unknown rate is no limit.
double at_rate(double amount, double rate) { return rate > 0 ? amount / rate : 0; }

}  // namespace

GemmCost gemm_cost(const Machine& machine, const GemmWork& work, int busy_sms) {
  GemmCost best;
  if (work.m <= 0 || work.n <= 0 || work.k <= 0 || work.batch <= 0) return best;
  const double m = static_cast<double>(work.m), n = static_cast<double>(work.n), k = static_cast<double>(work.k);
  const double batch = static_cast<double>(work.batch);
  const int64_t sms = std::max(machine.sms - busy_sms, 1);
  const double sustained = at_rate(2 * m * n * k * batch, machine.gemm.sustained_TFLOPs.value * kOpsPerUs);
  const double bytes = (batch * m * (k + n) + n * k) * work.element_bytes;
  best.us = std::numeric_limits<double>::infinity();
  for (const GemmTile& tile : machine.gemm.tiles) {
    const int64_t tiles = pieces(work.m, tile.rows) * pieces(work.n, tile.cols) * work.batch;
    const double waves = static_cast<double>(pieces(tiles, sms));
    const double computed = waves * (tile.wave_us.value + k * tile.k_ns.value / 1e3);
    const double per_sm = machine.gemm.sm_stream_GBps.value * static_cast<double>(std::min(tiles, sms));
    const double stream = std::min(
        machine.gemm.stream_GBps.value > 0 ? machine.gemm.stream_GBps.value : std::numeric_limits<double>::infinity(),
        per_sm > 0 ? per_sm : std::numeric_limits<double>::infinity());
    const double us = std::max({computed, sustained, bytes / (stream * kBytesPerUs)});
    if (us < best.us) best = {us, waves, 0};
  }
  best.start_us = machine.gemm.start_us.value;
  best.us += best.start_us;
  return best;
}

double copy_us(const Machine& machine, double bytes) {
  if (bytes <= 0) return 0;
  const double rate = machine.copy.all_GBps.value > 0 ? machine.copy.all_GBps.value : machine.copy.peer_GBps.value;
  return machine.copy.start_us.value + at_rate(bytes, rate * kBytesPerUs);
}

double reduce_us(const Machine& machine, double bytes) {
  return bytes <= 0 ? 0 : at_rate(bytes, machine.memory.reduce_GBps.value * kBytesPerUs);
}

double local_copy_us(const Machine& machine, double bytes) {
  return bytes <= 0 ? 0 : machine.copy.start_us.value + at_rate(bytes, machine.copy.local_GBps.value * kBytesPerUs);
}

double collective_us(const Machine& machine, std::string_view name, double bytes) {
  if (bytes <= 0) return 0;
  const Curve& curve = name == "all_gather"       ? machine.collectives.all_gather_us
                       : name == "reduce_scatter" ? machine.collectives.reduce_scatter_us
                                                  : machine.collectives.all_reduce_us;
  return curve.at(bytes);
}

double contention(const Machine& machine, Load slowed, Load by) {
  for (const Contention& entry : machine.contention)
    if (entry.slowed == slowed && entry.by == by) return entry.factor.value;
  return 1;
}

}  // namespace overlace::spec
