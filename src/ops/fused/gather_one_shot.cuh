// AllGather in front of the mainloop, for few tokens: all rows go through the inbox, so that one tensor map has them.
#pragma once

#include "src/ops/fused/exchange.cuh"

namespace overlace::ops::fused {

/// The shard arrives whole, that of this rank too. No credit: who sends in a call has got the call before from all,
/// which they sent after they had ended the one before that; and that call used the same buffer.
struct OneShotGatherParams : ShardParams {
  static constexpr bool kHasCredit = false, kGathersOwn = true, kDrawsParts = false;
  uint32_t* claims;  // by part: the call for which somebody tells that it was pushed
};
struct OneShotGatherGemmParams {
  GemmParams gemm;  // a: weights (N, K), b: tokens (M, K) of the first buffer, c: (M, N)
  OneShotGatherParams gather;
};

/// All lanes of a warp.
__device__ __forceinline__ Errc consume_signals(const OneShotGatherParams& g, uint32_t lane) {
  for (uint32_t sender = lane; sender < static_cast<uint32_t>(g.channel.team.size); sender += 32)
    device::consume(g.channel, static_cast<int>(sender), g.ready_id, kShares);
  return Errc::ok;
}

}  // namespace overlace::ops::fused
