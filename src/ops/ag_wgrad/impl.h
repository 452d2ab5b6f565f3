// What ag_wgrad is made of, without exceptions.
#pragma once

#include <vector>

#include "overlace/ops/ag_wgrad.h"
#include "src/base/status.h"

namespace overlace::ops {

/// Every precondition that this rank can see; first failure wins.
base::Status validate(const Channel& channel, const AgWgradArgs& args);
/// The Status twin of run().
base::Status run_status(Channel& channel, const AgWgradArgs& args, const spec::Schedule& schedule);

/// c (K, N) in fp64, from the shards of all ranks: the obvious loops.
std::vector<double> ag_wgrad_reference(const std::vector<TensorView>& shards, const TensorView& b);

}  // namespace overlace::ops
