// AllGather and GEMM in one kernel: hooks on the mainloop, nothing else.
#pragma once

#include "src/ops/gemm_core/hooks/add_bias.cuh"
#include "src/ops/gemm_core/hooks/add_half.cuh"
#include "src/ops/gemm_core/hooks/plain.cuh"
#include "src/ops/gemm_core/hooks/push_shard.cuh"
#include "src/ops/gemm_core/hooks/store_shard.cuh"
#include "src/ops/gemm_core/hooks/wait_chunks.cuh"
#include "src/ops/gemm_core/instances.h"
#include "src/ops/gemm_core/run.cuh"

namespace overlace::ops::gemm_core {

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

}  // namespace overlace::ops::gemm_core

#define OVERLACE_GATHER_UNIT(name) OVERLACE_UNIT(gather, name, sm90_gather_gemm)
