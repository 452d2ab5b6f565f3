// GEMM + ReduceScatter: out = this rank's rows of the sum over ranks of a b.
#pragma once

#include <string>
#include <vector>

#include "overlace/channel.h"
#include "overlace/ops/common.h"
#include "overlace/schedule.h"
#include "overlace/tensor.h"

namespace overlace::ops {

#pragma GCC visibility push(default)  // exported by liboverlace.so

/// GEMM, then ReduceScatter, on a team of G ranks, of which this is r: a row-parallel layer with sequence-parallel
/// output (arXiv 2406.06858, section 2). Partials travel in the dtype of out; the sum is fp32 in rank order with one
/// final rounding; bias is added once, after the sum.
struct GemmRsArgs {
  TensorView a{};     // (M, K_local)   fp32 | bf16 | fp16 | fp8: e4m3 | e5m2 (cpu: fp64 too); K contiguous
  TensorView b{};     // (K_local, N)   dtype of a; K or N contiguous; K_local may differ by rank
  TensorView out{};   // (rows of r, N) dtype of a | fp32; of fp8 bf16 | fp16 | fp32; N contiguous
  TensorView bias{};  // (N) or undefined; dtype of out, cpu: of a too; the same on all ranks
  // fp8 has scales, of fp32, which multiply each rank's sums, rows of a multiple of 16 elements, and b stored (N, K). b
  // is e4m3 or e5m2 beside e4m3, and e4m3 beside e5m2.
  TensorView a_scale{};                // (1) or (M, 1)
  TensorView b_scale{};                // (1) or (1, N), as a_scale is
  std::vector<int64_t> row_offsets{};  // G + 1 entries; empty: torch.tensor_split of M
};

/// Runs the operator. Collective; the call is queued on the channel's stream, and on CPU ranks it is complete on
/// return. Calls with equal inputs, schedules and team sizes give equal bits. Throws InvalidArgument (argument, value
/// got, value wanted), PlanMismatch or Unsupported before anything moves.
void run(Channel& channel, const GemmRsArgs& args, const spec::Schedule& schedule);
/// Returns the problem that these arguments pose to this team.
spec::OpSpec op_spec(const Channel& channel, const GemmRsArgs& args);

#pragma GCC visibility pop

}  // namespace overlace::ops
