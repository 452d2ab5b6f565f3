// The plain GEMM: C = A B, no hooks.
#pragma once

#include "bench/common/plain_gemm.cuh"
#include "src/gemm_core/hooks/add_half.cuh"
#include "src/gemm_core/hooks/plain.cuh"
#include "src/gemm_core/run.cuh"

namespace overlace::bench {

template <class Config>
__global__ __launch_bounds__(kThreads, 1) void sm90_gemm(const __grid_constant__ GemmParams p) {
  run<Config>(p, Dealt{}, WaitNone{}, StorePlain{&p.c}, SignalNone{}, PushNone{}, ReduceHalves<Config>{});
}

}  // namespace overlace::bench

#define OVERLACE_PLAIN_UNIT(name) OVERLACE_UNIT(overlace::bench, plain, name, sm90_gemm)
