// Tasks of kind pool of embedding_a2a on GPUs: arguments of the call, checked, to launches of the kernel.
#pragma once

#include <span>

#include "overlace/channel.h"
#include "src/exec/run.h"

namespace overlace::ops {

/// Before a call of an operator that pools on GPUs: room for what its kernels find in bags, once per channel. Nothing
/// in a captured call, which must not be the first one anyway.
base::Status prepare_pool(Channel& channel);
/// The body; `tensors` are those of role data, which check_bags() has taken, then others. They must outlive it.
exec::Body pool_on_gpu(Channel& channel, std::span<const TensorView> tensors);

}  // namespace overlace::ops
