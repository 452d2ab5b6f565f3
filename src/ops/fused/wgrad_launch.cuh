// Gradients of experts' weights from the host: (K, M) and (K, N) in groups of rows, each group's a^T b a matrix of its
// own, row-major, 16-bit operands, fp32 sums in the order of rows, one rounding. How many rows a group has stands in
// device memory.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "src/base/status.h"
#include "src/ops/fused/instances.h"
#include "src/ops/fused/params.cuh"

namespace overlace::ops::fused {

struct WgradParams {
  GemmParams gemm;
  const uint4* items;
  uint32_t* counter;
  int32_t num_items;
};

/// Groups begin at multiples of 64 rows; what lies behind the end of one is not added, whatever it is. A group without
/// rows gives zeros.
struct WgradArgs {
  const void* a = nullptr;  // (K, M), M contiguous
  const void* b = nullptr;  // (K, N)
  void* c = nullptr;        // (matrices, M, N)
  int64_t m = 0, n = 0, k = 0, matrices = 0;
  int64_t lda = 0, ldb = 0, matrix_pitch = 0, ldc = 0;  // elements between rows and matrices; multiples of 8
  const RowGroup* groups = nullptr;                     // (matrices), device memory
  const uint4* items = nullptr;                         // wgrad_items(), device memory
  uint32_t* counter = nullptr;                          // device memory, 0 before and after a launch
  uint32_t* error = nullptr;                            // as GemmArgs::error
  uint64_t timeout_ns = 2000000000;
  int most_clusters = 0;  // of the grid; 0: as many as run at once
};

/// The tiles of all matrices, {Work::product, tile of M, tile of N, matrix}, and behind them {kWorks, 0, 0, 0}.
std::vector<uint4> wgrad_items(const ConfigSpec& spec, int64_t m, int64_t n, int64_t matrices);

struct PreparedWgrad {
  WgradParams params;
  const Instance* instance = nullptr;
  int clusters = 0;
};
/// Encodes the tensor maps; `instance` is of Kernel::wgrad. invalid_argument names the argument, the value and what is
/// wanted.
base::Result<PreparedWgrad> prepare_wgrad(const Instance& instance, const WgradArgs& args);

base::Status launch_wgrad(const PreparedWgrad& prepared, cudaStream_t stream);

}  // namespace overlace::ops::fused
