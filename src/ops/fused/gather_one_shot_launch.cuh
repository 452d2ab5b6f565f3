// AllGather and GEMM of few tokens from the host: C (M, N) = A (M, K) B (K, N), where each rank has the rows of A of
// its shard.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "src/base/status.h"
#include "src/ops/fused/exchange_host.cuh"
#include "src/ops/fused/gather_one_shot.cuh"
#include "src/ops/fused/instances.h"

namespace overlace::ops::fused {

/// The inbox: two buffers of M K elements. `first_id`: of one signal.
struct OneShotGatherArgs : FusedArgs {
  const void* shard = nullptr;  // (rows of this rank, K)
  const void* bias = nullptr;   // (N) of the output's type
  uint32_t* claims = nullptr;   // a word per CTA of the largest grid, 0; of a state
  ExchangeState state;
};

/// Everything a launch needs; reusable while the pointers hold.
struct PreparedOneShotGather {
  OneShotGatherGemmParams params;
  const Instance* instance = nullptr;
  int clusters = 0;
};
/// invalid_argument names the argument, the value and what is wanted.
base::Result<PreparedOneShotGather> prepare_one_shot_gather(const Instance& instance, const OneShotGatherArgs& args);
/// Queues; capturable. `uses_pdl` as launch() has it.
base::Status launch_one_shot_gather(const PreparedOneShotGather& prepared, bool uses_pdl, cudaStream_t stream);

}  // namespace overlace::ops::fused
