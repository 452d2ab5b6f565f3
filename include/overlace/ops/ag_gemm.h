// AllGather + GEMM: c = concat over ranks of a_shard, times b.
#pragma once

#include <string>
#include <vector>

#include "overlace/channel.h"
#include "overlace/ops/common.h"
#include "overlace/schedule.h"
#include "overlace/tensor.h"

namespace overlace::ops {

#pragma GCC visibility push(default)  // exported by liboverlace.so

/// AllGather of rows, then GEMM, on a team of G ranks, of which this is r: a column-parallel layer (arXiv 2406.06858,
/// section 2).
struct AgGemmArgs {
  TensorView a_shard{};  // (rows of r, K)   fp32 | bf16 | fp16 | fp8: e4m3 | e5m2 (cpu: fp64 too); K contiguous
  TensorView b{};     // (K, N)   dtype of a_shard; K or N contiguous: usually weight.transposed(); N may differ by rank
  TensorView c{};     // (M, N), swiglu: (M, N / 2)   dtype of a_shard | fp32; of fp8 bf16 | fp16 | fp32; N contiguous
  TensorView bias{};  // (N) or undefined; dtype of c, on CPU ranks of a_shard too
  TensorView a{};     // (M, K) or undefined: takes the gathered activation
  // fp8 has scales, of fp32, which multiply the sums, rows of a multiple of 16 elements, and b stored (N, K). b is
  // e4m3 or e5m2 beside e4m3, and e4m3 beside e5m2.
  TensorView a_scale{};                // (1), the same on all ranks, or (rows of r, 1), which travel with the rows
  TensorView b_scale{};                // (1) or (1, N), as a_scale is
  std::vector<int64_t> row_offsets{};  // G + 1 entries; empty: torch.tensor_split of M
  spec::Activation activation = spec::Activation::none;  // applied after the bias; swiglu: N even
};

/// Runs the operator. Collective; the call is queued on the channel's stream, and on CPU ranks it is complete on
/// return. Calls with equal inputs, schedules and team sizes give equal bits. Throws InvalidArgument (argument, value
/// got, value wanted), PlanMismatch or Unsupported before anything moves.
void run(Channel& channel, const AgGemmArgs& args, const spec::Schedule& schedule);
/// Returns the problem that these arguments pose to this team.
spec::OpSpec op_spec(const Channel& channel, const AgGemmArgs& args);

#pragma GCC visibility pop

}  // namespace overlace::ops
