// Library GEMMs on GPUs: cuBLASLt, opened at run time.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <string>

#include "overlace/dtype_pod.h"
#include "overlace/schedule.h"
#include "src/base/status.h"

namespace overlace::exec {

/// c (+)= a b, row-major, `batch` equally spaced products that share b. Leading dimensions and strides in elements.
struct LtGemm {
  int64_t m = 0, n = 0, k = 0;
  int64_t lda = 0, ldb = 0, ldc = 0;
  int64_t batch = 1, batch_stride_a = 0, batch_stride_c = 0;
  DType in = DType::bf16, out = DType::bf16;  // fp32 and fp64 inputs keep their type
  bool a_is_km = false;                       // a is stored (k, m), lda apart; else (m, k)
  spec::BLayout b_layout = spec::BLayout::nk;
  bool accumulate = false;
  bool bias = false;  // (n), type of c
  auto operator<=>(const LtGemm&) const = default;
};

/// One per rank and device: handle, workspaces (one per stream that multiplies), and a plan per shape. The first
/// heuristic is taken, so that all ranks and runs use the same kernels and give the same bits.
class CublasLt {
 public:
  static base::Result<std::unique_ptr<CublasLt>> open(int device);
  virtual ~CublasLt() = default;
  /// "13.1.0"
  virtual std::string version() const = 0;
  /// Makes the plan (not inside capture). not_supported with the shape where cuBLASLt has no algorithm.
  virtual base::Status prepare(const LtGemm& gemm) = 0;
  /// Queues; prepares first if needed. `lane` selects the workspace: calls that may run at once use different lanes.
  virtual base::Status run(const LtGemm& gemm, const void* a, const void* b, const void* bias, void* c, int lane,
                           cudaStream_t stream) = 0;
};

}  // namespace overlace::exec
