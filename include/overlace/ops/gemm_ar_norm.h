// GEMM + AllReduce + residual + RMSNorm: the end of a row-parallel layer, the same bits on all ranks.
#pragma once

#include "overlace/channel.h"
#include "overlace/ops/common.h"
#include "overlace/schedule.h"
#include "overlace/tensor.h"

namespace overlace::ops {

#pragma GCC visibility push(default)  // exported by liboverlace.so

/// GEMM, AllReduce, residual and RMSNorm on a team of G ranks: the end of a row-parallel layer.
///     sum = sum over ranks of a b, plus bias             rounded to the type of a, as GemmArArgs::out
///     out = sum + residual                               added in fp32, rounded
///     normed = out / sqrt(mean of the row's out^2 + eps) * norm_weight
///                                                        from the rounded out, in fp32, rounded once
/// (fp64 instead of fp32 for fp64.) With bias, residual, norm_weight and eps the same on all ranks, results are, too.
struct GemmArNormArgs {
  TensorView a{};            // (M, K_local)   fp32 | bf16 | fp16 (cpu: fp64 too); K contiguous
  TensorView b{};            // (K_local, N)   dtype of a; K or N contiguous
  TensorView residual{};     // (M, N)         dtype of a; N contiguous
  TensorView norm_weight{};  // (N)            dtype of a
  TensorView out{};          // (M, N)         dtype of a; N contiguous; shares no memory with another argument
  TensorView normed{};       // (M, N)         as out
  TensorView bias{};         // (N) or undefined
  double eps = 1e-6;         // above 0
};

/// Runs the operator. Collective; the call is queued on the channel's stream, and on CPU ranks it is complete on
/// return. Calls with equal inputs, schedules and team sizes give equal bits. Throws InvalidArgument (argument, value
/// got, value wanted), PlanMismatch or Unsupported before anything moves.
void run(Channel& channel, const GemmArNormArgs& args, const spec::Schedule& schedule);
/// Returns the problem that these arguments pose to this team.
spec::OpSpec op_spec(const Channel& channel, const GemmArNormArgs& args);

#pragma GCC visibility pop

}  // namespace overlace::ops
