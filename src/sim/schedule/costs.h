// What an instance does alone on a machine: times and bytes, from its regions.
#pragma once

#include <cstdint>

#include "src/base/status.h"
#include "src/sim/engine/engine.h"
#include "src/spec/expand.h"
#include "src/spec/machine.h"

namespace overlace::sim {

/// `boxes` copies of together `bytes`; row_bytes < bytes / boxes: 2-D.
double copy_start_us(const spec::Machine& machine, int64_t boxes, int64_t rows_of_2d);
double copy_flow_us(const spec::Machine& machine, double bytes, int64_t boxes, bool is_local);

/// First something fixed, then a flow of `amount` that takes flow_us alone. No flow where amount is 0.
struct Work {
  double start_us = 0, flow_us = 0;
  uint64_t amount = 0;
  int64_t link_bytes = 0;  // from the rank to `to`
  int to = -1;
  int64_t memory_bytes = 0, peer_memory_bytes = 0;
  int64_t moved_bytes = 0;  // as a timeline says it: bytes of the written boxes
  double flops = 0;
  int64_t kernels = 0, copies = 0;  // that are queued for it
  spec::Load load = spec::Load::gemm_tensor;
  bool is_empty() const { return amount == 0; }
};

/// The work of anything but parts of fused kernels. not_supported: the machine has no numbers for it.
base::Result<Work> work_of(const spec::Schedule& schedule, const spec::Expansion& expansion,
                           const spec::Instance& instance, const spec::Machine& machine);

}  // namespace overlace::sim
