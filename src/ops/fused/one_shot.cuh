// AllReduce and ReduceScatter behind the mainloop, for few tokens: every rank sends its parts of the sums to all who
// want them, and adds up all parts of its own.
#pragma once

#include "overlace/device/put.cuh"
#include "src/ops/fused/params.cuh"

namespace overlace::ops::fused {

/// What no rounding gives: a NaN of all ones. Words of an inbox that have not come are this.
inline constexpr uint32_t kNotCome = ~0u;
/// A chunk is 8 tokens of a tile of 64 rows, as the 128 threads of a warpgroup hold them.
inline constexpr uint32_t kChunkBytes = 128 * 8;

/// An inbox of two buffers, which calls take by turns: per sender a slot, in it chunks of the sender's tiles. Words
/// that have been read are made kNotCome again; so nobody sets flags, and no call resets what another one writes: who
/// sends in a call has got the call before from all, which they sent after they had ended the one before that. So each
/// rank gets some chunk from each.
struct OneShotParams {
  ChannelPod channel;
  uint64_t inbox, pitch;  // of the first buffer in every heap; from it to the second
  uint64_t slot_bytes;
  uint32_t* calls;                   // made so far, a count for each warp that adds: (count_ctas, 8) in device memory
  uint32_t* places;                  // counter of DrawnPlaces
  uint32_t count_ctas;               // of the largest grid
  int32_t chunks;                    // of a tile
  uint32_t chunks_of[kOrderShards];  // that a rank gets; bit i: tokens 8 i to 8 i + 7
  int32_t n;
  const void* bias;  // (N) of the output's type, or null
};
struct OneShotGemmParams {
  GemmParams gemm;  // a: weights (N, K), b: tokens (M, K), c: (my tokens, N)
  OneShotParams exchange;
  int32_t first_token;  // at row 0 of c; negative: none of them is mine
};

}  // namespace overlace::ops::fused
