// The gradient of a weight behind an AllGather: c = (concat over ranks of a_shard)^T times b.
#pragma once

#include <vector>

#include "overlace/channel.h"
#include "overlace/ops/common.h"
#include "overlace/schedule.h"
#include "overlace/tensor.h"

namespace overlace::ops {

#pragma GCC visibility push(default)  // exported by liboverlace.so

/// AllGather, then the GEMM of a weight's gradient, on a team of G ranks, of which this is r. It is a part of the
/// backward pass of ag_gemm if the gathered activation was not kept: b is the gradient of its result, c that of its
/// weight (arXiv 2406.06858, section 2). The sum is over the M rows that travel.
struct AgWgradArgs {
  TensorView a_shard{};                // (rows of r, K)   fp32 | bf16 | fp16 (cpu: fp64 too); K contiguous
  TensorView b{};                      // (M, N)           dtype of a_shard; N or M contiguous; N may differ by rank
  TensorView c{};                      // (K, N)           dtype of a_shard | fp32; N contiguous
  TensorView a{};                      // (M, K) or undefined: takes the gathered activation
  std::vector<int64_t> row_offsets{};  // G + 1 entries; empty: torch.tensor_split of M
};

/// Runs the operator. Collective; the call is queued on the channel's stream, and on CPU ranks it is complete on
/// return. Calls with equal inputs, schedules and team sizes give equal bits. Throws InvalidArgument (argument, value
/// got, value wanted), PlanMismatch or Unsupported before anything moves. Sums are fp32 (fp64 for fp64) and rounded
/// once. Families add blocks of rows in different orders, so their bits differ from each other, but not from run to
/// run.
void run(Channel& channel, const AgWgradArgs& args, const spec::Schedule& schedule);
/// Returns the problem that these arguments pose to this team.
spec::OpSpec op_spec(const Channel& channel, const AgWgradArgs& args);

#pragma GCC visibility pop

}  // namespace overlace::ops
