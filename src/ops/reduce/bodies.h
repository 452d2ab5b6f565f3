// The bodies that the dense operators bring for `reduce` tasks.
#pragma once

#include "overlace/channel.h"
#include "src/exec/run.h"

namespace overlace::ops {

/// Sum of the sources in region and box order, in fp32 (fp64 for fp64), plus the bias once (last region where the task
/// has parameter "bias"), rounded once. One body per backend; `backend` of the channel decides.
const exec::Bodies& reduce_bodies(const Channel& channel);

/// The one of CPU ranks.
base::Status reduce_on_cpu(const exec::BodyContext& context);

/// Sources and bias of a reduce task; bad_schedule with the task where its regions are not of that form.
struct ReduceOperands {
  std::vector<TensorView> sources;
  TensorView bias;  // undefined: none
  TensorView dst;   // undefined: nothing to do
};
base::Result<ReduceOperands> reduce_operands(const exec::BodyContext& context);

}  // namespace overlace::ops
