// What gemm_ar is made of, without exceptions.
#pragma once

#include <vector>

#include "overlace/ops/gemm_ar.h"
#include "src/base/status.h"

namespace overlace::ops {

/// Every precondition that this rank can see; first failure wins.
base::Status validate(const Channel& channel, const GemmArArgs& args);
/// The Status twin of run().
base::Status run_status(Channel& channel, const GemmArArgs& args, const spec::Schedule& schedule);

}  // namespace overlace::ops
