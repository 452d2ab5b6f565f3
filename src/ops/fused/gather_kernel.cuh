// AllGather and GEMM in one kernel: hooks on the mainloop, nothing else.
#pragma once

#include "src/gemm_core/hooks/add_bias.cuh"
#include "src/gemm_core/hooks/add_half.cuh"
#include "src/gemm_core/hooks/plain.cuh"
#include "src/gemm_core/run.cuh"
#include "src/ops/fused/hooks/push_shard.cuh"
#include "src/ops/fused/hooks/store_shard.cuh"
#include "src/ops/fused/hooks/wait_chunks.cuh"
#include "src/ops/fused/instances.h"

namespace overlace::ops::fused {

template <class Config>
__device__ __forceinline__ auto reduce_of(const GatherGemmParams& p) {
  if constexpr (Config::kSplitK > 1) {
    return AddHalf{};
  } else {
    return AddBias{&p.gemm, p.gather.bias, p.gather.n};
  }
}

template <class Config>
__global__ __launch_bounds__(kThreads, 1) void sm90_gather_gemm(const __grid_constant__ GatherGemmParams p) {
  const TileOrder* const order = &p.gemm.order;
  run<Config>(p.gemm, tickets_of(p.gather, p.gemm.num_tiles), WaitChunks{&p.gather, order},
              StoreShard{&p.gather, order}, SignalNone{}, PushShard<GatherParams>{&p.gather}, reduce_of<Config>(p));
}

}  // namespace overlace::ops::fused

#define OVERLACE_GATHER_UNIT(name) OVERLACE_UNIT(overlace::ops::fused, gather, name, sm90_gather_gemm)
