// Embedding + All-to-All: out = all features of this rank's samples, each pooled on the rank that holds its table.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "overlace/channel.h"
#include "overlace/ops/common.h"
#include "overlace/schedule.h"
#include "overlace/tensor.h"

namespace overlace::ops {

#pragma GCC visibility push(default)  // exported by liboverlace.so

/// Lookup of embeddings with pooling, then All-to-All, on a team of G ranks, of which this is r (arXiv 2305.06942,
/// section 3). Rank r pools its features for the whole batch of B samples; rank g gets all features of its samples. The
/// placement says which columns of which table a feature is, which rank pools it, and which columns of the result it
/// becomes: tables on different ranks, and columns of a table on different ranks. On a rank, the bags of its features
/// lie feature by feature in the order of the placement.
struct EmbeddingA2aArgs {
  TensorView weights{};  // (elements of r) fp32 | bf16 | fp16 | fp64: the slices of tables that r pools, one
                         // after the other, each (rows, width), in the order of the features that name it
  TensorView indices{};  // (entries of r)  i64 | i32: rows of tables, bag by bag
  TensorView offsets{};  // (features of r times B, + 1) i64 | i32: bag f B + b begins at entry offsets[f B + b]
  TensorView per_sample_weights{};  // (entries of r)  dtype of weights, with mode sum; or undefined
  TensorView out{};              // (samples of r, columns of all features) dtype of weights | fp32; columns contiguous
  int64_t batch = 0;             // B; without row_offsets samples are split as torch.tensor_split does
  std::string placement{};       // JSON, equal on all ranks: {"tables": [{"rows", "dim", "padding": -1}],
                                 // "features": [{"table", "rank", "first": 0, "width": dim, "column"}],
                                 // "entries": 1}; entries is the expected length of a bag, for planning
  std::string mode = "sum";      // sum | mean | max; an empty bag gives zeros; entries that are the table's padding
                                 // are left out, and not counted by mean
  std::string bounds = "error";  // an index outside its table: error | ignore | clamp | zero_row | none (unchecked)
  std::vector<int64_t> row_offsets{};  // G + 1 entries, equal on all ranks: samples of rank g are [g], [g + 1]
};

/// Runs the operator. Collective; on CPU ranks the call is complete on return, on GPUs it is queued, and can be
/// captured once a call like it was made. Calls with equal inputs, schedules and team sizes give equal bits on one
/// backend, and so do all families. Throws InvalidArgument (argument, value got, value wanted; of a bad index: rank,
/// feature, bag, position, value, rows), PlanMismatch or Unsupported before anything moves, on all ranks. On GPUs bad
/// indices and offsets are left out, and told on the rank that pools them by Runtime::check(), behind the next call of
/// an operator, which is made, or with CheckOptions::sync behind this one.
void run(Channel& channel, const EmbeddingA2aArgs& args, const spec::Schedule& schedule);
/// Returns the problem that these arguments pose to this team.
spec::OpSpec op_spec(const Channel& channel, const EmbeddingA2aArgs& args);

#pragma GCC visibility pop

}  // namespace overlace::ops
