// GEMM + All-to-All: out = this rank's block of rows of each rank's a b, or its columns of all of them.
#pragma once

#include <string>
#include <vector>

#include "overlace/channel.h"
#include "overlace/ops/common.h"
#include "overlace/schedule.h"
#include "overlace/tensor.h"

namespace overlace::ops {

#pragma GCC visibility push(default)  // exported by liboverlace.so

/// GEMM, then All-to-All of its rows, on a team of G ranks, of which this is r (arXiv 2305.06942, section 3): the rows
/// of a are G blocks, one for each rank, and block d of the product goes to rank d. Nothing is summed across ranks;
/// results travel in the dtype of out, rounded once. With exchange cols each rank has all rows of its part of the
/// columns instead, those of rank s behind those of the ranks before: from sequence to heads in front of an attention
/// (DeepSpeed Ulysses, arXiv 2309.14509), with one product for q, k and v.
struct GemmA2aArgs {
  TensorView a{};                 // (rows of r, K)  fp32 | bf16 | fp16 (cpu: fp64 too); K contiguous
  TensorView b{};                 // (K, N)          dtype of a; K or N contiguous; each rank has its own, of its own K
  TensorView out{};               // (sum over s of splits[s G + r], N) dtype of a | fp32; N contiguous; family library
                                  //                 wants rows without gaps. cols: (rows of all ranks, N / G)
  TensorView bias{};              // (N) or undefined; dtype of out, cpu: of a too; added to this rank's product
  std::vector<int64_t> splits{};  // G x G entries, equal on all ranks: entry s G + d counts the rows from rank s to d;
                                  // empty: ranks have equally many rows and cut them as torch.tensor_split does.
                                  // cols: G entries, rows of each rank; empty: torch.tensor_split of out's rows
  spec::Exchange exchange = spec::Exchange::rows;
  std::vector<int64_t> blocks{};  // cols: N in blocks, each a multiple of G, of which rank d gets the d-th part; its
                                  // parts lie side by side in the order of the blocks. Empty: one block
};

/// Runs the operator. Collective; the call is queued on the channel's stream, and on CPU ranks it is complete on
/// return. Calls with equal inputs, schedules and team sizes give equal bits. Throws InvalidArgument (argument, value
/// got, value wanted), PlanMismatch or Unsupported before anything moves.
void run(Channel& channel, const GemmA2aArgs& args, const spec::Schedule& schedule);
/// Returns the problem that these arguments pose to this team.
spec::OpSpec op_spec(const Channel& channel, const GemmA2aArgs& args);

#pragma GCC visibility pop

}  // namespace overlace::ops
