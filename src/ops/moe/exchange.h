// Dispatch and combine by the team's engine: what a user of a library of collectives does. Counts are read on the host.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "overlace/channel.h"
#include "overlace/tensor.h"
#include "src/base/status.h"
#include "src/ops/moe/experts.h"
#include "src/ops/moe/route.h"

namespace overlace::ops::moe {

/// What all ranks know before rows move.
struct Traffic {
  std::vector<int64_t> counts{};  // (R, E) copies of a rank's tokens for each expert
  std::vector<int64_t> rows{};    // (R, R) rows from rank to rank
};
/// Collective. `mine`: whether this rank can make the call; `words`: what must be equal on all ranks. Where a rank
/// refuses or words differ, all ranks get an error and none sends anything.
base::Result<Traffic> meet(Channel& channel, const base::Status& mine, const std::string& words, const Routes& routes);

/// Copies that came from one rank, as Shipment has them.
struct Arrival {
  std::vector<int32_t> rows{};  // of each copy, among those that came from this rank
  std::vector<int32_t> sum_begin{}, sum_copies{};
  std::vector<int64_t> pool_rows{};  // of each copy
};

/// What the dispatch leaves for experts and combine.
struct Dispatched {
  Traffic traffic{};
  PoolLayout pool{};
  Rows x{};                      // (P, H)
  std::vector<float> weights{};  // (P)
  std::vector<Arrival> from{};   // (R)
};
/// Collective, after meet(). x (T, H): rows of the tokens of `routes`.
base::Result<Dispatched> dispatch(Channel& channel, const Placement& placement, const Routes& routes, Traffic traffic,
                                  const TensorView& x);

/// Collective. Other rows of the same tokens, (T, H), in the places of theirs: (P, H).
base::Result<Rows> dispatch_more(Channel& channel, const Routes& routes, const Dispatched& dispatched,
                                 const TensorView& tokens);

/// Collective. A number of each copy, (P), to the choice that made it, out (T, k); choices without a copy get zeros.
/// Where out is undefined nothing is written; this rank sends and receives all the same.
base::Status return_numbers(Channel& channel, const Placement& placement, const Routes& routes,
                            const Dispatched& dispatched, const std::vector<float>& numbers, const TensorView& out);

/// Collective. y (P, H), the rows that the experts made of `dispatched`; out (T, H). Copies of a token on one rank are
/// added in fp32 in the order of choices and rounded to the dtype of y for the wire, those of this rank not; these sums
/// are added in fp32 in rank order and rounded once. A token without copies gets zeros.
base::Status combine(Channel& channel, const Routes& routes, const Dispatched& dispatched, Rows y,
                     const TensorView& out);

}  // namespace overlace::ops::moe
