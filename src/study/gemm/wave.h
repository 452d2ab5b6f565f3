// Times of GEMMs from waves of output tiles (docs/design/simulator_models.md).
#pragma once

#include <cstdint>
#include <vector>

#include "src/base/status.h"

namespace overlace::study {

struct GemmShape {
  int64_t m = 0, n = 0, k = 0;
  int element_bytes = 2;
  int64_t batch = 1;  // GEMMs of this shape in one kernel
};

struct GemmMachine {
  int sms = 1;
  double tflops = 1;    // dense peak of the data type
  double hbm_GBps = 1;  // peak
};

/// Constants of a machine's GEMM library or kernel, fitted from times.
struct GemmConstants {
  double launch_us = 0;      // before the first and after the last wave
  double wave_us = 0;        // prologue and epilogue of one tile
  double tensor_share = 1;   // of the peak, in the mainloop
  double feed_GBps = 1e9;    // operands into one CTA
  double hbm_share = 1;      // of the peak
  double stream_GBps = 1e9;  // what one CTA draws from memory: the limit of few tiles
};

struct Tile {
  int m = 128, n = 128;
  int splits = 1;  // of K
};

enum class Waves { whole, stream_k };

struct GemmTime {
  Tile tile;
  int64_t tiles = 0;
  int sms = 0;  // that compute
  double waves = 0;
  double wave_us = 0;  // one wave, compute
  double launch_us = 0;
  double compute_us = 0, memory_us = 0;  // the larger of them and the launch are the time
  double time_us() const { return launch_us + (compute_us > memory_us ? compute_us : memory_us); }
};

/// One tile configuration on `sms - comm_sms` SMs. Errc::invalid_argument for sizes < 1 or no SM left.
base::Result<GemmTime> gemm_time(const GemmShape& shape, const Tile& tile, const GemmMachine& machine,
                                 const GemmConstants& constants, int comm_sms = 0, Waves waves = Waves::whole);

/// The configuration of the shortest time, of tiles from 32x32 to 256x128 and 1 to 16 splits: what a library picks.
base::Result<GemmTime> best_gemm_time(const GemmShape& shape, const GemmMachine& machine,
                                      const GemmConstants& constants, int comm_sms = 0);

/// Completion of each of `groups` runs of tiles in the order of the schedule, in us from the start; the last one is
/// time_us(). Group g holds the tiles [g tiles / groups, (g + 1) tiles / groups). Precondition: 1 <= groups <= tiles.
std::vector<double> group_completions_us(const GemmTime& time, int64_t groups);

}  // namespace overlace::study
