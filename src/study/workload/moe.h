// An expert-parallel MoE layer, forward, on many GPUs: router, dispatch, shared experts, the experts' grouped GEMMs,
// combine. Counts of tokens may differ from expert to expert and from rank to rank; so do transfers and GEMMs.
#pragma once

#include <string>

#include "overlace/machine.h"
#include "src/study/network/collectives.h"
#include "src/study/workload/moe_load.h"
#include "src/study/workload/step.h"

namespace overlace::study {

struct MoeRun : MoeRouting {
  int group = 0;          // ranks that share all experts; 0: all of the network
  int chunks = 1;         // of the tokens: a chunk's transfers hide behind the GEMMs of the others
  bool is_ideal = false;  // nothing in the network takes time
};

struct MoeTime {
  double layer_us = 0, bound_us = 0, serial_us = 0;
  double compute_us = 0;                   // of the rank that computes longest
  double shared_us = 0;                    // of it the shared experts', which wait for nobody
  double dispatch_us = 0, combine_us = 0;  // whole, alone
  double imbalance = 1;                    // copies of the fullest rank over the mean
  double sent_bytes = 0;                   // dispatched by a rank to others, mean
  double copy_bytes = 0;                   // what that were with a row for each copy
  std::string algorithm;
  double exposed_us() const { return layer_us - compute_us; }
};

/// Ranks of a group. Errc::invalid_argument for groups that do not tile the network and for more than kMostTasks
/// transfers.
base::Result<int> moe_group(const MoeRun& run, const Network& network);

/// Errc::invalid_argument as `moe_group` and for a load that cannot be (`moe_load`); not_supported for a machine
/// without costs of GEMMs.
base::Result<MoeTime> moe_layer(const MoeModel& model, const MoeRun& run, const spec::Machine& machine,
                                const Network& network, base::Trace* timeline = nullptr);

}  // namespace overlace::study
