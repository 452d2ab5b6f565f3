#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "overlace/plan.h"
#include "src/base/format.h"

namespace overlace::plan {
namespace {

// Below these a finer schedule's launches and partial waves of tiles cost more than the transfer that they hide.
constexpr int64_t kMinRowsGpu = 4096, kMinRowsCpu = 64;
constexpr double kMinChunkBytesGpu = 512 * 1024;  // smaller copies run at a fifth of the link
constexpr double kMinGain = 0.05;                 // of the library's time, expected; less is within the model's error
constexpr int kDegrees[] = {1, 2, 4, 8};

/// Fixed costs, in us.
struct Costs {
  double copy;          // of one copy with its signal
  double launch;        // of one more GEMM
  double collective;    // of one library collective, besides its bytes
  double library_rate;  // share of the link that the library's collective reaches
  double contention;    // GEMM time lost per time of traffic beside it
  double memory;        // bytes per us that a reduction reads and writes
  bool sums_last;       // reductions wait for all GEMMs
};
constexpr Costs kGpu = {7, 8, 30, 0.8, 0.1, 3e6, true};
constexpr Costs kCpu = {40, 20, 60, 1.0, 0.02, 4e3, false};

/// One problem in us: the GEMM, the transfer of one rank (each way, once), the reduction of my rows.
struct Times {
  double gemm, transfer, reduce, chunk_bytes;
};

Times times_of(const spec::OpSpec& op, const Hardware& hardware, const Costs& costs) {
  const double m = static_cast<double>(op.m), n = static_cast<double>(op.n), k = static_cast<double>(op.k);
  const double g = op.ranks;
  const bool is_ag = op.op == "ag_gemm";
  const double shard = is_ag ? m / g * k * static_cast<double>(dtype_bytes(op.dtype))
                             : m / g * n * static_cast<double>(dtype_bytes(op.out_dtype));
  const double reduce = is_ag ? 0 : shard * (g + 1) / costs.memory;
  return {2 * m * n * k / hardware.flops_per_s * 1e6, (g - 1) * shard / hardware.link_bytes_per_s * 1e6, reduce, shard};
}

double library_us(const spec::OpSpec& op, const Times& t, const Costs& costs) {
  const double passes = op.op == "gemm_ar" ? 2 : 1;
  return t.gemm + passes * t.transfer / costs.library_rate + costs.collective;
}

double gemm_beside_traffic_us(const Times& t, const Costs& costs) {
  return t.gemm + costs.contention * std::min(t.gemm, t.transfer);
}

/// Chunk by chunk: a GEMM starts when the one before it is done and its rows are there.
double gather_us(const spec::OpSpec& op, const Times& t, const Costs& costs, int q) {
  const double g = op.ranks, gemm = gemm_beside_traffic_us(t, costs), part = gemm * (g - 1) / (g * q) + costs.launch;
  const double chunk = t.transfer / q + (g - 1) * costs.copy;
  double computed = gemm / g, arrived = 0;
  for (int s = 0; s < q; ++s) {
    arrived += chunk;
    computed = std::max(computed, arrived) + part;
  }
  return computed;
}

/// Chunk by chunk: a transfer starts when its partials are computed and the one before it has left; a chunk is summed
/// when it has come, on GPUs behind all GEMMs (one stream). gemm_ar then sends the sums over the same link.
double scatter_us(const spec::OpSpec& op, const Times& t, const Costs& costs, int q, bool is_hetero) {
  const double g = op.ranks, chunk = t.transfer / q + (g - 1) * costs.copy;
  const double gemm = gemm_beside_traffic_us(t, costs), sent = is_hetero ? gemm * (g - 1) / g : gemm;
  const double own_done = gemm + (q + (is_hetero ? 1 : 0)) * costs.launch;
  std::vector<double> arrived;
  double link = 0;
  for (int s = 0; s < q; ++s) {
    link = std::max(link, (s + 1) * (sent / q + costs.launch)) + chunk;
    arrived.push_back(link);
  }
  double reduced = is_hetero || costs.sums_last ? own_done : 0;
  for (const double us : arrived) {
    reduced = std::max(reduced, us) + t.reduce / q;
    if (op.op == "gemm_ar") link = std::max(link, reduced) + chunk;
  }
  return std::max({reduced, link, own_done});
}

Choice library(const spec::OpSpec& op, std::string reason) {
  return {spec::make_schedule(op, "library"), std::move(reason) + ": library"};
}

}  // namespace

Choice choose(const spec::OpSpec& op, const Hardware& hardware) {
  if (op.ranks == 1) return library(op, "one rank has nothing to transfer");
  if (hardware.flops_per_s <= 0) return library(op, "the GEMM rate of this machine is unknown");
  if (hardware.link_bytes_per_s <= 0) return library(op, "copies cost the computing core itself");
  const int64_t min_rows = hardware.is_gpu ? kMinRowsGpu : kMinRowsCpu;
  if (op.m < min_rows) return library(op, base::format("M {} is below {}, too few rows to cut", op.m, min_rows));

  const Costs& costs = hardware.is_gpu ? kGpu : kCpu;
  const Times t = times_of(op, hardware, costs);
  const double whole = library_us(op, t, costs);
  std::string best_family;
  int best_degree = 0;
  double best = whole * (1 - kMinGain);
  for (const int q : kDegrees) {
    if (hardware.is_gpu && t.chunk_bytes / q < kMinChunkBytesGpu) break;
    if (op.m / op.ranks < q * (hardware.is_gpu ? 128 : 16)) break;  // rows of a tile
    for (const char* family : {"hetero_fused_1d", "uniform_fused_1d"}) {
      const bool is_hetero = std::string_view(family) == "hetero_fused_1d";
      if (op.op == "ag_gemm" && !is_hetero) continue;  // copies its own rows for nothing
      const double us = op.op == "ag_gemm" ? gather_us(op, t, costs, q) : scatter_us(op, t, costs, q, is_hetero);
      if (us >= best) continue;
      best = us;
      best_family = family;
      best_degree = q;
    }
  }
  const std::string parts = base::format("GEMM {:.0f} us, transfer {:.0f} us", t.gemm, t.transfer);
  if (best_family.empty()) {
    return library(op,
                   base::format("{}: nothing expected to gain {:.0f} % on {:.0f} us", parts, 100 * kMinGain, whole));
  }
  return {spec::make_schedule(op, best_family, best_degree),
          base::format("{}: {} q {} expected at {:.0f} us, library at {:.0f} us", parts, best_family, best_degree, best,
                       whole)};
}

}  // namespace overlace::plan
