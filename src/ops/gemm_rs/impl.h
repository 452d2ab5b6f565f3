// What gemm_rs is made of, without exceptions.
#pragma once

#include <vector>

#include "overlace/ops/gemm_rs.h"
#include "src/base/status.h"

namespace overlace::ops {

/// Every precondition that this rank can see; first failure wins.
base::Status validate(const Channel& channel, const GemmRsArgs& args);
/// The Status twin of run().
base::Status run_status(Channel& channel, const GemmRsArgs& args, const spec::Schedule& schedule);

/// The whole sum (M, N) in fp64, bias included, from the operands of all ranks: the obvious loops. Rank r of gemm_rs
/// keeps its rows, gemm_ar all of them.
std::vector<double> gemm_sum_reference(const std::vector<TensorView>& a, const std::vector<TensorView>& b,
                                       const TensorView& bias);

}  // namespace overlace::ops
