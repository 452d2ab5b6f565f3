// GEMM and AllReduce, or ReduceScatter, of few tokens in one kernel: hooks on the mainloop, nothing else.
#pragma once

#include "src/gemm_core/hooks/add_half.cuh"
#include "src/gemm_core/hooks/plain.cuh"
#include "src/gemm_core/hooks/store_transposed.cuh"
#include "src/gemm_core/run.cuh"
#include "src/ops/fused/hooks/add_peers.cuh"
#include "src/ops/fused/instances.h"

namespace overlace::ops::fused {

template <class Config>
__global__ __launch_bounds__(kThreads, 1) void sm90_gemm_one_shot(const __grid_constant__ OneShotGemmParams p) {
  run<Config>(p.gemm, DrawnPlaces{p.exchange.places}, WaitNone{}, StoreTransposed{&p.gemm.c, p.first_token},
              SignalNone{}, PushNone{}, AddHalfThen<Config, AddPeers>{{&p.exchange, &p.gemm}});
}

}  // namespace overlace::ops::fused

#define OVERLACE_ONE_SHOT_UNIT(name) OVERLACE_UNIT(overlace::ops::fused, one_shot, name, sm90_gemm_one_shot)
