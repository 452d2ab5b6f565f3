// The plain GEMM from the host: C (M, N) = A (M, K) B (K, N), row-major, 16-bit operands, fp32 sums, one rounding.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>
#include <string_view>

#include "src/base/status.h"
#include "src/gemm_core/config.h"
#include "src/gemm_core/params.cuh"

namespace overlace::bench {

using namespace gemm_core;

#define INSTANCE(kernel, name) const void* kernel##_kernel_##name();
#include "bench/common/plain_instances.def"
#undef INSTANCE

std::span<const Instance> plain_instances();
/// nullptr if there is none.
const Instance* find_plain(std::string_view name);

struct GemmArgs {
  const void* a = nullptr;  // (M, K), K contiguous
  const void* b = nullptr;  // (N, K) or (K, N), as ConfigSpec::b_major has it
  void* c = nullptr;        // (M, N)
  int64_t m = 0, n = 0, k = 0;
  int64_t lda = 0, ldb = 0, ldc = 0;  // elements between rows; multiples of 8
  TileSweep sweep = TileSweep::along_n;
  int swizzle = 8;            // row tiles (along_n) or column tiles (along_m) of the cluster's size per block
  uint32_t* error = nullptr;  // device memory, 0; not 0 after a launch whose pipeline got stuck
  uint64_t timeout_ns = 2000000000;
};

/// Everything a launch needs; reusable while the pointers hold.
struct PreparedPlain {
  GemmParams params;
  const Instance* instance = nullptr;
  int clusters = 0;
};
/// Encodes the tensor maps. invalid_argument names the argument, the value and what is wanted.
base::Result<PreparedPlain> prepare_plain(const Instance& instance, const GemmArgs& args);

/// Queues. `uses_pdl`: CTAs may be set up while the grid before in the stream still runs; it is waited for before
/// anything is read.
base::Status launch_plain(const PreparedPlain& prepared, bool uses_pdl, cudaStream_t stream);

}  // namespace overlace::bench
