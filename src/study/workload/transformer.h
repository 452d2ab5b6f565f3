// A training step of a transformer on many GPUs: tensor (and sequence), data and pipeline parallel. GEMMs as the
// machine's model says, collectives as messages on the network, chunks of both overlapped.
#pragma once

#include <cstdint>
#include <vector>

#include "overlace/machine.h"
#include "src/study/network/collectives.h"
#include "src/study/workload/step.h"

namespace overlace::study {

struct TransformerModel {
  int64_t hidden = 8192, intermediate = 28672, vocabulary = 128256;
  int layers = 80, heads = 64, kv_heads = 8;
  int64_t sequence = 4096;
  bool is_gated = true;  // two GEMMs before the activation
  /// The parameters of a layer.
  double parameters() const;
};

/// Rank = tensor place + tensor * (replica + replicas * stage).
struct TransformerRun {
  int tensor = 8, pipeline = 1;  // replicas: what is left of the network's ranks
  int micro_batches = 8;         // of a replica and step, one behind the other
  int sequences = 1;             // of a micro-batch
  int chunks = 1;  // of a tensor-parallel collective that hide behind the GEMM's; 1: whole, one after the other
  bool overlaps_gradients = true;
  bool is_ideal = false;            // nothing in the network takes time
  std::vector<double> slower = {};  // by replica: its computation takes so many times as long; empty: 1
};

/// Times of one layer and micro-batch, on one rank.
struct LayerTime {
  double forward_us = 0, backward_us = 0;
  double forward_compute_us = 0, backward_compute_us = 0;
  double exposed_us() const { return (forward_us - forward_compute_us) + (backward_us - backward_compute_us); }
};

struct TransformerTime {
  LayerTime layer;
  double step_us = 0, bound_us = 0, compute_us = 0;  // of the stage that computes longest
  double bubble_us = 0;  // that no stage with equal layers can avoid: (stages - 1) micro-batches
  double gradient_us = 0, gradient_exposed_us = 0;  // all-reduces of a rank; step without them
  double optimizer_us = 0;
  double flops = 0;  // of a rank and step, useful ones
  int replicas = 1;
  double tokens = 0;  // of a step, all replicas
  double tokens_per_s() const { return tokens / step_us * 1e6; }
  double TFLOPs() const { return flops / step_us * 1e-6; }  // of a GPU
};

/// Errc::invalid_argument where sizes do not divide, or for more than kMostTasks tasks; not_supported for a machine
/// without costs of GEMMs. `timeline`: of the last stage's view of the step, if wanted.
base::Result<TransformerTime> transformer_step(const TransformerModel& model, const TransformerRun& run,
                                               const spec::Machine& machine, const Network& network,
                                               base::Trace* timeline = nullptr);

}  // namespace overlace::study
