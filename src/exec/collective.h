// Collective instances by the team's engine; ragged shards too, which engines do not know.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "overlace/net_engine.h"
#include "src/exec/program.h"

namespace overlace::exec {

/// Rows of one tensor to another of the same shape and dtype, on the lane's stream (cpu: at once).
using CopyRows = std::function<base::Status(const TensorView& from, const TensorView& to)>;

/// Rows of `in`, block after block, go to the ranks in their order; `out` takes the blocks of all ranks in rank order.
/// `table` (G, G): rows from each rank to each. Both are contiguous. Engines know blocks of equal length alone, so this
/// is a message for each pair of ranks that has rows.
base::Status exchange_rows(Team& team, NetEngine& net, const TensorView& in, const TensorView& out,
                           const std::vector<int64_t>& table, StreamRef stream, const CopyRows& copy_rows);

/// all_gather: reads[0] (rows of this rank) -> writes[0] (all rows, contiguous). reduce_scatter, all_reduce: reads[0]
/// (all rows, contiguous; may be overwritten) -> writes[0]. In place where the result is not contiguous.
/// not_supported where the team has no engine.
base::Status run_collective(const Call& call, Team& team, const spec::Instance& instance, StreamRef stream,
                            const CopyRows& copy_rows);

}  // namespace overlace::exec
