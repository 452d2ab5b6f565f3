#include "src/study/gemm/wave.h"

#include <algorithm>
#include <cmath>

#include "src/base/ceil_div_pod.h"

namespace overlace::study {
namespace {

constexpr int kTileSizes[] = {256, 128, 64, 32};
constexpr int kSplits[] = {1, 2, 3, 4, 6, 8, 16};
constexpr int kLargestTile = 256 * 128;  // accumulators that fit one CTA's registers
constexpr int64_t kLeastSplitK = 256;
constexpr double kPartialBytes = 8;  // fp32, written and read

base::Status check(const GemmShape& shape, const Tile& tile, const GemmMachine& machine, int comm_sms) {
  if (shape.m < 1 || shape.n < 1 || shape.k < 1 || shape.batch < 1)
    return base::invalid_argument("gemm: {} GEMMs of M {}, N {}, K {}, wanted at least 1 each", shape.batch, shape.m,
                                  shape.n, shape.k);
  if (tile.m < 1 || tile.n < 1 || tile.splits < 1)
    return base::invalid_argument("gemm: tile {}x{} with {} splits, wanted at least 1 each", tile.m, tile.n,
                                  tile.splits);
  if (comm_sms < 0 || comm_sms >= machine.sms)
    return base::invalid_argument("gemm: {} of {} SMs for communication, wanted at least one left", comm_sms,
                                  machine.sms);
  return {};
}

double tiles_of(int64_t a, int64_t b) { return static_cast<double>(base::ceil_div(a, b)); }

/// Precondition: check() passed.
GemmTime time_of(const GemmShape& shape, const Tile& tile, const GemmMachine& machine, const GemmConstants& constants,
                 int comm_sms, Waves waves) {
  const double sms = machine.sms - comm_sms;
  const double k = static_cast<double>(shape.k) / tile.splits;
  const double batch = static_cast<double>(shape.batch);
  const double tiles = batch * tiles_of(shape.m, tile.m) * tiles_of(shape.n, tile.n) * tile.splits;
  const double m = static_cast<double>(shape.m), n = static_cast<double>(shape.n);
  const double flops_per_us = machine.tflops * 1e6 / machine.sms * constants.tensor_share;
  const double tensor_us = 2.0 * tile.m * tile.n * k / flops_per_us;
  const double feed_us = (tile.m + tile.n) * k * shape.element_bytes / (constants.feed_GBps * 1e3);
  GemmTime time;
  time.tile = tile;
  time.tiles = static_cast<int64_t>(tiles);
  time.sms = machine.sms - comm_sms;
  time.launch_us = constants.launch_us;
  time.wave_us = constants.wave_us + std::max(tensor_us, feed_us);
  // NOTE: stream-K cuts the last wave's work evenly, so that waves are not whole numbers.
  time.waves = waves == Waves::stream_k ? std::max(1.0, tiles / sms) : std::ceil(tiles / sms);
  time.compute_us = time.waves * time.wave_us;
  const double operands = (m * static_cast<double>(shape.k) + n * static_cast<double>(shape.k) + m * n);
  const double partials = tile.splits > 1 ? kPartialBytes * m * n * tile.splits : 0;
  const double rate_GBps =
      std::min(machine.hbm_GBps * constants.hbm_share, std::min(tiles, sms) * constants.stream_GBps);
  time.memory_us = batch * (operands * shape.element_bytes + partials) / (rate_GBps * 1e3);
  return time;
}

}  // namespace

base::Result<GemmTime> gemm_time(const GemmShape& shape, const Tile& tile, const GemmMachine& machine,
                                 const GemmConstants& constants, int comm_sms, Waves waves) {
  OVERLACE_TRY(check(shape, tile, machine, comm_sms));
  return time_of(shape, tile, machine, constants, comm_sms, waves);
}

base::Result<GemmTime> best_gemm_time(const GemmShape& shape, const GemmMachine& machine,
                                      const GemmConstants& constants, int comm_sms) {
  OVERLACE_TRY(check(shape, Tile{}, machine, comm_sms));
  GemmTime best;
  for (const int m : kTileSizes) {
    for (const int n : kTileSizes) {
      for (const int splits : kSplits) {
        if (m * n > kLargestTile || (splits > 1 && shape.k / splits < kLeastSplitK)) continue;
        const GemmTime time = time_of(shape, {m, n, splits}, machine, constants, comm_sms, Waves::whole);
        if (best.tiles == 0 || time.time_us() < best.time_us()) best = time;
      }
    }
  }
  return best;
}

std::vector<double> group_completions_us(const GemmTime& time, int64_t groups) {
  OVERLACE_ASSERT(groups >= 1 && groups <= time.tiles);
  const double span_us = time.time_us() - time.launch_us;
  std::vector<double> completions;
  completions.reserve(static_cast<size_t>(groups));
  for (int64_t group = 0; group < groups; ++group) {
    const int64_t last_tile = (group + 1) * time.tiles / groups - 1;
    const double waves = static_cast<double>(last_tile / time.sms + 1);
    completions.push_back(time.launch_us + span_us * std::min(1.0, waves / time.waves));
  }
  return completions;
}

}  // namespace overlace::study
