// The plain GEMM: C = A B, no hooks.
#pragma once

#include "src/ops/gemm_core/hooks/add_half.cuh"
#include "src/ops/gemm_core/hooks/plain.cuh"
#include "src/ops/gemm_core/instances.h"
#include "src/ops/gemm_core/run.cuh"

namespace overlace::ops::gemm_core {

template <class Config>
__global__ __launch_bounds__(kThreads, 1) void sm90_gemm(const __grid_constant__ GemmParams p) {
  run<Config>(p, Dealt{}, WaitNone{}, StorePlain{&p.c}, SignalNone{}, PushNone{}, ReduceHalves<Config>{});
}

}  // namespace overlace::ops::gemm_core

#define OVERLACE_PLAIN_UNIT(name) OVERLACE_UNIT(plain, name, sm90_gemm)
