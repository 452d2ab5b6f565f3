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

/// Team of G ranks, rank r. Column-parallel layer (arXiv 2406.06858, section 2).
struct AgGemmArgs {
  TensorView a_shard{};  // (rows of r, K)   fp32 | bf16 | fp16 (cpu: fp64 too); K contiguous
  TensorView b{};     // (K, N)   dtype of a_shard; K or N contiguous: usually weight.transposed(); N may differ by rank
  TensorView c{};     // (M, N), swiglu: (M, N / 2)   dtype of a_shard | fp32; N contiguous
  TensorView bias{};  // (N) or undefined; dtype of c or of a_shard
  TensorView a{};     // (M, K) or undefined: the gathered activation, copied out
  std::vector<int64_t> row_offsets{};                    // G + 1 entries; empty: torch.tensor_split of M
  spec::Activation activation = spec::Activation::none;  // of the sums, behind the bias; swiglu: N even
};

/// Collective; queued on the channel's stream (cpu: returns when done). Same inputs, schedule and team size give the
/// same bits. Throws InvalidArgument (argument, got, wanted), PlanMismatch, Unsupported before anything moves.
void run(Channel& channel, const AgGemmArgs& args, const spec::Schedule& schedule);
/// The problem these arguments pose to this team.
spec::OpSpec op_spec(const Channel& channel, const AgGemmArgs& args);

#pragma GCC visibility pop

}  // namespace overlace::ops
