// GEMM and AllReduce, or ReduceScatter, of few tokens in one kernel: hooks on the mainloop, nothing else. One instance
// per unit, instances/one_shot_*.cu.
#pragma once

#include "src/ops/gemm_core/hooks/add_peers.cuh"
#include "src/ops/gemm_core/hooks/plain.cuh"
#include "src/ops/gemm_core/hooks/store_transposed.cuh"
#include "src/ops/gemm_core/one_shot_instances.h"
#include "src/ops/gemm_core/run.cuh"

namespace overlace::ops::gemm_core {

template <class Config>
__global__ __launch_bounds__(kThreads, 1) void sm90_gemm_one_shot(const __grid_constant__ OneShotGemmParams p) {
  run<Config>(p.gemm, Dealt{}, WaitNone{}, StoreTransposed{&p.gemm.c, p.first_token}, SignalNone{}, PushNone{},
              AddPeers{&p.exchange, &p.gemm});
}

}  // namespace overlace::ops::gemm_core

/// Body of a unit: defines the function that one_shot_instances.h declares for `name`.
#define OVERLACE_ONE_SHOT_UNIT(name)                                                 \
  const void* overlace::ops::gemm_core::one_shot_kernel_##name() {                   \
    using namespace overlace::ops::gemm_core;                                        \
    return reinterpret_cast<const void*>(&sm90_gemm_one_shot<Config<kSpec_##name>>); \
  }
