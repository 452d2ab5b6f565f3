// What ag_gemm is made of, without exceptions.
#pragma once

#include <vector>

#include "overlace/ops/ag_gemm.h"
#include "src/base/status.h"

namespace overlace::ops {

/// Every precondition that this rank can see; first failure wins.
base::Status validate(const Channel& channel, const AgGemmArgs& args);
/// The Status twin of run().
base::Status run_status(Channel& channel, const AgGemmArgs& args, const spec::Schedule& schedule);

/// c (M, N), of swiglu (M, N / 2), in fp64, from the shards of all ranks: the obvious loops.
std::vector<double> ag_gemm_reference(const std::vector<TensorView>& shards, const TensorView& b,
                                      const TensorView& bias, spec::Activation activation = spec::Activation::none);

}  // namespace overlace::ops
