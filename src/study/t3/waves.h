// Inside the T3 module: waves of output tiles and the memory that they share with communication.
#pragma once

#include "src/study/t3/t3.h"

namespace overlace::study::t3 {

inline constexpr int kTile = 128;      // rows and columns of a work group's output (ours)
inline constexpr int kWavefronts = 4;  // of a work group (ours)

/// Tiles that all CUs compute at once, as a rectangle: 8 x 10 on 80 (ours).
struct WaveShape {
  int rows, cols;
};
WaveShape wave_shape(int cus);

/// Bytes that the GEMM reads from memory.
double gemm_reads(const SubLayer& layer, const Machine& machine, bool output_is_cached);

/// Communication reaches memory while fewer quanta of the GEMM are pending; above, it gets its least share only.
inline constexpr int kRoundRobin = 1 << 30;

/// What runs beside the GEMM.
enum class Beside { nothing, all_reduce, fused_reduce_scatter };

struct WavesInput {
  SubLayer layer;
  Machine machine;
  Options options;
  int threshold = kRoundRobin;
  Beside beside = Beside::nothing;
  int cus = 80;  // that compute
  bool output_is_cached = true;
  double link_share = 1;  // of the link that the all-reduce beside it reaches
};

struct WavesResult {
  double gemm_us = 0;
  double all_us = 0;  // GEMM and what runs beside it
  int64_t tracker_peak = 0, tracker_overflows = 0;
  Traffic bytes;  // served by memory; without the all-gather of a fused reduce-scatter
};

WavesResult run_waves(const WavesInput& input);

}  // namespace overlace::study::t3
