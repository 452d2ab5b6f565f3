// AllGather and GEMM of few tokens in one kernel: hooks on the mainloop, nothing else.
#pragma once

#include "src/gemm_core/hooks/add_bias.cuh"
#include "src/gemm_core/hooks/add_half.cuh"
#include "src/gemm_core/hooks/plain.cuh"
#include "src/gemm_core/hooks/store_transposed.cuh"
#include "src/gemm_core/run.cuh"
#include "src/ops/fused/hooks/push_shard.cuh"
#include "src/ops/fused/hooks/wait_tokens.cuh"
#include "src/ops/fused/instances.h"

namespace overlace::ops::fused {

template <class Config>
__global__ __launch_bounds__(kThreads,
                             1) void sm90_one_shot_gather_gemm(const __grid_constant__ OneShotGatherGemmParams p) {
  run<Config>(p.gemm, places_of(p.gather), WaitTokens{&p.gather}, StoreTransposed{&p.gemm.c, 0}, SignalNone{},
              PushShard<OneShotGatherParams>{&p.gather},
              AddHalfThen<Config, AddBias>{{&p.gemm, p.gather.bias, p.gather.n}});
}

}  // namespace overlace::ops::fused

#define OVERLACE_GATHER_ONE_SHOT_UNIT(name) \
  OVERLACE_UNIT(overlace::ops::fused, gather_one_shot, name, sm90_one_shot_gather_gemm)
