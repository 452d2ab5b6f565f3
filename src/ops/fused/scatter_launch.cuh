// GEMM and ReduceScatter from the host: C (rows of this rank, N) = those rows of the sum over ranks of A B, where each
// rank has a part of K. GEMM and AllReduce: C (M, N), all rows.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

#include "src/base/status.h"
#include "src/ops/fused/exchange_host.cuh"
#include "src/ops/fused/instances.h"

namespace overlace::ops::fused {

/// Bytes of a buffer of the inbox.
uint64_t scatter_inbox_bytes(std::span<const int64_t> row_offsets, int64_t n);

struct ScatterArgs : FusedArgs {
  const void* a = nullptr;     // (M, K of this rank)
  const void* bias = nullptr;  // (N), or null
  int groups = kMaxGroups;     // that the tiles for an owner are told in, at most; AllReduce: bands
  bool sums_travel = false;    // AllReduce
  uint64_t sums_offset = 0;    // AllReduce: in the heap, of (M, N) for them, in the inbox's first buffer
  uint32_t ready_id = 0;       // AllReduce: kMaxGroups ids
  float alpha = 1;             // of the sum; the bias is added behind it
  CountersPod done{};          // as ScatterParams::done: `c` is (M, N) then, `groups` the chunks of an owner's rows
  ExchangeState state;         // `first_id`: kMaxGroups ids, of CTAs
};

/// Everything a launch needs; reusable while the pointers hold. All ranks use the same instance, groups and swizzle.
struct PreparedScatter {
  ScatterGemmParams params;
  const Instance* instance = nullptr;
  int clusters = 0;
};
/// invalid_argument names the argument, the value and what is wanted.
base::Result<PreparedScatter> prepare_scatter(const Instance& instance, const ScatterArgs& args);
/// Makes the list of items, so that prepare_scatter with the same sizes allocates nothing. No operands.
base::Status prepare_scatter_items(const Instance& instance, const ScatterArgs& args);
/// Queues; capturable. `uses_pdl` as launch() has it.
base::Status launch_scatter(const PreparedScatter& prepared, bool uses_pdl, cudaStream_t stream);

}  // namespace overlace::ops::fused
