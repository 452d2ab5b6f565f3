// GEMM and ReduceScatter in one kernel: hooks on the mainloop, nothing else.
#pragma once

#include "src/gemm_core/hooks/plain.cuh"
#include "src/gemm_core/run.cuh"
#include "src/ops/fused/hooks/reduce_own.cuh"
#include "src/ops/fused/hooks/signal_peer.cuh"
#include "src/ops/fused/hooks/store_slot.cuh"
#include "src/ops/fused/instances.h"

namespace overlace::ops::fused {

template <class Config>
__global__ __launch_bounds__(kThreads, 1) void sm90_gemm_scatter(const __grid_constant__ ScatterGemmParams p) {
  const TileOrder* const order = &p.gemm.order;
  run<Config>(p.gemm, tickets_of(p.scatter, count_items(p.scatter.work)), WaitNone{},
              StoreSlot{&p.scatter, order, &p.gemm.c}, SignalPeer{&p.scatter, order}, PushNone{},
              ReduceOwn{&p.scatter, order, &p.gemm});
}

}  // namespace overlace::ops::fused

#define OVERLACE_SCATTER_UNIT(name) OVERLACE_UNIT(overlace::ops::fused, scatter, name, sm90_gemm_scatter)
