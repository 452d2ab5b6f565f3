// Time of one training iteration of a GPT with tensor, sequence and pipeline parallelism, first order: GEMMs from
// waves, all else from memory, collectives from a line, the pipeline's bubble in closed form.
#pragma once

#include <cstdint>

#include "src/study/gemm/wave.h"

namespace overlace::study {

struct GptModel {
  int64_t hidden = 0;
  int layers = 1, heads = 1;
  int64_t sequence = 2048, vocabulary = 51200;
};

struct GptRun {
  int tensor_ranks = 8, pipeline_ranks = 1;
  int interleave = 1;  // model chunks of a pipeline rank
  int batch = 1, micro_batch = 1;
  /// Activations: all recomputed, or those of the attention core only, with norms and dropouts split over the ranks.
  bool recomputes_all = true;
};

struct TrainingMachine {
  GemmMachine gemm;
  GemmConstants constants;     // launch_us: between kernels of a busy stream
  double sustained_share = 1;  // of the GEMM rate of single calls that clocks leave in a long run
  double memory_share = 1;     // of the peak, in element-wise kernels
  double all_reduce_us = 0;    // latency
  double all_reduce_GBps = 1;  // bus rate
  double pipeline_GBps = 1;
};

struct IterationTime {
  double gemm_us = 0, memory_us = 0, all_reduce_us = 0;  // of one layer and micro-batch, both directions
  double total_s = 0;
};

/// Errc::invalid_argument where layers, heads or batch do not divide evenly.
base::Result<IterationTime> gpt_iteration(const GptModel& model, const GptRun& run, const TrainingMachine& machine);

}  // namespace overlace::study
