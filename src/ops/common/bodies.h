// What the dense operators bring to exec.
#pragma once

#include "overlace/channel.h"
#include "src/exec/run.h"

namespace overlace::ops {

/// Bodies of `reduce` and `tiles` tasks and the fused kernels, for the backend of the channel.
const exec::Bodies& bodies(const Channel& channel);

}  // namespace overlace::ops
