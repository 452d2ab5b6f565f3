// A training step of a recommendation model over many hosts, first order: pooled embeddings of the tables of each GPU
// -> all-to-all -> MLP, backward the same way, all-reduce of the MLP's gradients. Fused: what is pooled leaves at once.
#pragma once

#include <string_view>

#include "src/base/status.h"
#include "src/spec/machine.h"

namespace overlace::study {

struct DlrmModel {
  int gpus = 128;
  int tables = 1;  // of a GPU
  int local_batch = 256;
  int mlp_layers = 43, mlp_width = 682;
  int embedding = 92, pooling = 70, element_bytes = 4;
};

struct DlrmMachine {
  double hbm_GBps = 1200;
  double backward_gather = 1.5;  // of the forward one
  double tflops = 181;
  double kernel_us = 2;
  double all_reduce_GBps = 50;
  double all_to_all_GBps = 50;  // of what a GPU sends
};

struct DlrmTime {
  double gather_us = 0, all_to_all_us = 0, mlp_us = 0, all_reduce_us = 0;  // forward; MLP: both ways
  double unfused_us = 0;
  double forward_fused_us = 0;  // forward only
  double fused_us = 0;          // both ways
  double forward_gain() const { return 1 - forward_fused_us / unfused_us; }
  double gain() const { return 1 - fused_us / unfused_us; }
};

/// Pooling and its exchange, forward.
struct DlrmExchange {
  double gather_us = 0, all_to_all_us = 0;  // each alone
  double serial_us = 0;                     // one after the other
  double fused_loss = 1;                    // of the longer of both, fused
};

/// By the rates of the machine; a fused exchange takes 1.03 of the longer of both. Errc::invalid_argument for sizes or
/// rates that are not positive.
base::Result<DlrmExchange> dlrm_assumed(const DlrmModel& model, const DlrmMachine& machine);
/// By schedules of embedding_a2a, simulated: pooling alone, exchange alone, `serial`, and the fastest family that cuts
/// the batch, in one or two chunks. GPUs are those of `gpu`, but each sends and receives at machine.all_to_all_GBps.
base::Result<DlrmExchange> dlrm_simulated(const DlrmModel& model, const DlrmMachine& machine, const spec::Machine& gpu);

/// The rest is by the rates of the machine. Backward there is no schedule: a fused exchange loses what it loses
/// forward.
base::Result<DlrmTime> dlrm_step(const DlrmModel& model, const DlrmMachine& machine, const DlrmExchange& forward);

struct DlrmBand {
  double least_forward = 1, most_forward = 0, least = 1, most = 0;  // gains, as shares
};
/// Over 1 to 8 tables and 256 to 4096 samples of a GPU.
base::Result<DlrmBand> dlrm_band(const DlrmMachine& machine);

/// Networks of 128 GPUs and the rate at which one sends in an all-to-all on them. Simulated: `ring` (a ring per
/// dimension of a 16 x 8 torus); bounds: `torus` (its bisection), `rail` (16 hosts of 8, NICs of 50 GB/s).
base::Result<double> dlrm_all_to_all_GBps(std::string_view network);

}  // namespace overlace::study
