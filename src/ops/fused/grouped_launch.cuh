// Grouped GEMM from the host: rows of A in groups, each times its own matrix, row-major, 16-bit operands, fp32 sums,
// one rounding. Which rows are whose stands in device memory, so the host need not know.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "src/base/status.h"
#include "src/ops/fused/instances.h"
#include "src/ops/fused/params.cuh"

namespace overlace::ops::fused {

struct GroupedParams {
  GemmParams gemm;
  const uint4* items;
  const int32_t* num_items;
  uint32_t* counter;
  const float* row_weights;
};

/// Groups begin at multiples of 128 rows; what lies between the end of one and the next is computed as well, and means
/// nothing. An item is {Work::product, 128 rows, columns of a cluster, matrix}, all counted from 0, and behind the last
/// one follows {kWorks, 0, 0, 0}.
struct GroupedArgs {
  const void* a = nullptr;  // (M, K), K contiguous
  const void* b = nullptr;  // (matrices, N, K) or (matrices, K, N); gated: (matrices, 2 N, K), first the gates' rows
  void* c = nullptr;        // (M, N) of the operands' type or fp32; gated: silu(a gate^T) * (a up^T) * row_weights
  int64_t m = 0, n = 0, k = 0, matrices = 0;
  int64_t lda = 0, ldb = 0, matrix_pitch = 0, ldc = 0;  // elements between rows and matrices; multiples of 8
  const uint4* items = nullptr;
  const int32_t* num_items = nullptr;  // device memory
  uint32_t* counter = nullptr;         // device memory, 0 before and after a launch
  const float* row_weights = nullptr;  // (M), gated only
  uint32_t* error = nullptr;           // as GemmArgs::error
  uint64_t timeout_ns = 2000000000;
  int most_clusters = 0;  // of the grid; 0: as many as run at once
};

struct PreparedGrouped {
  GroupedParams params;
  const Instance* instance = nullptr;
  int clusters = 0;
};
/// Encodes the tensor maps; `instance` is of Kernel::grouped, with 2 halves for gated ones, and says how B lies and
/// whether C is fp32. invalid_argument names the
/// argument, the value and what is wanted.
base::Result<PreparedGrouped> prepare_grouped(const Instance& instance, const GroupedArgs& args);

base::Status launch_grouped(const PreparedGrouped& prepared, cudaStream_t stream);

}  // namespace overlace::ops::fused
