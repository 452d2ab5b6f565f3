// GEMM + AllReduce: out = sum over ranks of a b, the same bits on all ranks.
#pragma once

#include <string>
#include <vector>

#include "overlace/channel.h"
#include "overlace/ops/common.h"
#include "overlace/schedule.h"
#include "overlace/tensor.h"

namespace overlace::ops {

#pragma GCC visibility push(default)  // exported by liboverlace.so

/// GEMM, then AllReduce, on a team of G ranks: a row-parallel layer with replicated output. One owner reduces each row
/// (rows are split as in gemm_rs), in fp32 and rank order, then broadcasts it.
struct GemmArArgs {
  TensorView a{};     // (M, K_local)   fp32 | bf16 | fp16 | fp8: e4m3 | e5m2 (cpu: fp64 too); K contiguous
  TensorView b{};     // (K_local, N)   dtype of a; K or N contiguous
  TensorView out{};   // (M, N)         dtype of a | fp32; of fp8 bf16 | fp16 | fp32; N contiguous
  TensorView bias{};  // (N) or undefined; dtype of out, on CPU ranks of a too
  // fp8 has scales, of fp32, which multiply each rank's sums, rows of a multiple of 16 elements, and b stored (N, K). b
  // is e4m3 or e5m2 beside e4m3, and e4m3 beside e5m2.
  TensorView a_scale{};  // (1) or (M, 1)
  TensorView b_scale{};  // (1) or (1, N), as a_scale is
};

/// Runs the operator. Collective; the call is queued on the channel's stream, and on CPU ranks it is complete on
/// return. Calls with equal inputs, schedules and team sizes give equal bits. Throws InvalidArgument (argument, value
/// got, value wanted), PlanMismatch or Unsupported before anything moves.
void run(Channel& channel, const GemmArArgs& args, const spec::Schedule& schedule);
/// Returns the problem that these arguments pose to this team.
spec::OpSpec op_spec(const Channel& channel, const GemmArArgs& args);

#pragma GCC visibility pop

}  // namespace overlace::ops
