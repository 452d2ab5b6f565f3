// All-to-All + GEMM: c = (this rank's block of each rank's a_shard) b.
#pragma once

#include <string>
#include <vector>

#include "overlace/channel.h"
#include "overlace/ops/common.h"
#include "overlace/schedule.h"
#include "overlace/tensor.h"

namespace overlace::ops {

#pragma GCC visibility push(default)  // exported by liboverlace.so

/// All-to-All of rows, then GEMM, on a team of G ranks, of which this is r: the mirror of gemm_a2a (arXiv 2305.06942,
/// section 3). The rows of a_shard are G blocks, one for each rank; each rank multiplies the received rows by its own
/// b. With exchange cols each rank has its part of the columns of all ranks' rows and gets all columns of its own rows,
/// from heads to sequence behind an attention.
struct A2aGemmArgs {
  TensorView a_shard{};  // (rows of r, K)  fp32 | bf16 | fp16 (cpu: fp64 too); K contiguous. cols: (rows of
                         //                 all ranks, K / G)
  TensorView b{};        // (K, N_local)    dtype of a_shard; K or N contiguous; N_local may differ by rank
  TensorView c{};     // (sum over s of splits[s G + r], N_local) dtype of a_shard | fp32; N contiguous. cols: (rows of
                      //                 r, N_local)
  TensorView bias{};  // (N_local) or undefined; dtype of c, on CPU ranks of a_shard too
  TensorView a{};     // (rows of c, K) or undefined: takes the received rows; dtype of a_shard
  std::vector<int64_t> splits{};  // rows from rank to rank, as in GemmA2aArgs
  spec::Exchange exchange = spec::Exchange::rows;
  std::vector<int64_t> blocks{};  // blocks of K, as in GemmA2aArgs
};

/// Runs the operator. Collective; the call is queued on the channel's stream, and on CPU ranks it is complete on
/// return. Calls with equal inputs, schedules and team sizes give equal bits. Throws InvalidArgument (argument, value
/// got, value wanted), PlanMismatch or Unsupported before anything moves.
void run(Channel& channel, const A2aGemmArgs& args, const spec::Schedule& schedule);
/// Returns the problem that these arguments pose to this team.
spec::OpSpec op_spec(const Channel& channel, const A2aGemmArgs& args);

#pragma GCC visibility pop

}  // namespace overlace::ops
