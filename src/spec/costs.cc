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

double GemmWork::flops() const {
  return 2 * static_cast<double>(m) * static_cast<double>(batch) * static_cast<double>(n) * static_cast<double>(k);
}

double GemmWork::bytes() const {
  const double rows = static_cast<double>(m) * static_cast<double>(batch), in = static_cast<double>(in_bytes);
  const double width = static_cast<double>(n), depth = static_cast<double>(k);
  return rows * (depth * in + width * static_cast<double>(out_bytes)) + width * depth * in;
}

GemmCost gemm_cost(const Machine& machine, const GemmWork& work) {
  GemmCost out;
  if (work.m <= 0 || work.n <= 0 || work.k <= 0 || work.batch <= 0) return out;
  const Machine::Gemm& gemm = machine.gemm;
  const int64_t sms = std::max(machine.sms, 1);
  out.us = std::numeric_limits<double>::infinity();
  double busy = 1;  // SMs of the last full wave
  for (const GemmTile& tile : gemm.tiles) {
    const int64_t tiles = work.batch * pieces(work.m, tile.rows) * pieces(work.n, tile.cols);
    const double waves = static_cast<double>(pieces(tiles, sms));
    const double us = waves * (tile.wave_us.value + static_cast<double>(work.k) * tile.k_ns.value * 1e-3);
    if (us >= out.us) continue;
    out.us = us;
    out.waves = waves;
    busy = static_cast<double>(std::min(tiles, sms));
  }
  double stream = gemm.stream_GBps.value;
  if (const double each = gemm.sm_stream_GBps.value; each > 0)
    stream = stream > 0 ? std::min(stream, busy * each) : busy * each;
  out.start_us = gemm.start_us.value;
  out.us = out.start_us + std::max({out.us, at_rate(work.flops(), gemm.sustained_TFLOPs.value * kOpsPerUs),
                                    at_rate(work.bytes(), stream * kBytesPerUs)});
  return out;
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

std::optional<double> collective_us(const Machine& machine, std::string_view name, double bytes, int ranks) {
  const Machine::Collectives& c = machine.collectives;
  const Curve* curve = name == "all_gather"       ? &c.all_gather_us
                       : name == "reduce_scatter" ? &c.reduce_scatter_us
                       : name == "all_reduce"     ? &c.all_reduce_us
                       : name == "all_to_all"     ? &c.all_to_all_us
                                                  : nullptr;
  if (curve == nullptr || curve->empty()) return std::nullopt;
  if (bytes <= 0) return 0;
  const auto sent = [](int n) { return static_cast<double>(n - 1) / n; };
  return curve->at(machine.ranks > 1 && ranks > 1 ? bytes * sent(ranks) / sent(machine.ranks) : bytes);
}

double contention(const Machine& machine, Load slowed, Load by) {
  for (const Contention& entry : machine.contention)
    if (entry.slowed == slowed && entry.by == by) return entry.factor.value;
  return 1;
}

}  // namespace overlace::spec
