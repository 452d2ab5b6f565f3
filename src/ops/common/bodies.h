// What the dense operators bring to exec.
#pragma once

#include <span>

#include "overlace/channel.h"
#include "overlace/operator.h"
#include "src/exec/run.h"

namespace overlace::ops {

/// Bodies of `reduce` and `tiles` tasks and the fused kernels, for the backend of the channel.
const exec::Bodies& bodies(const Channel& channel);
/// not_supported if the operator brings OperatorDef::compute, which cannot run on the backend of the channel.
base::Status check_computes(const Channel& channel, const spec::OperatorDef& def);
/// Bodies of an operator that brings OperatorDef::compute; on GPUs one that pools there. `tensors`: the arguments of
/// the call, which must outlive it. May allocate at the first call of a channel.
base::Result<exec::Bodies> bodies_of(Channel& channel, const spec::OperatorDef& def,
                                     std::span<const TensorView> tensors);

}  // namespace overlace::ops
