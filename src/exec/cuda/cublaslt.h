// Library GEMMs on GPUs: cuBLASLt, opened at run time.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <string>

#include "src/base/status.h"
#include "src/exec/lt_gemm.h"

namespace overlace::exec {

/// One per rank and device: handle, workspaces (one per stream that multiplies), and a plan per shape and
/// alignment of operands. The first heuristic is taken, so that all ranks and runs whose operands are aligned alike use
/// the same kernels and give the same bits.
class CublasLt {
 public:
  /// Leaves the current device as it was.
  static base::Result<std::unique_ptr<CublasLt>> open(int device);
  virtual ~CublasLt() = default;
  /// "13.1.0"
  virtual std::string version() const = 0;
  /// Makes the plan for operands of the alignment that `gemm` names (not inside capture). not_supported with the shape
  /// where cuBLASLt has no algorithm.
  virtual base::Status prepare(const LtGemm& gemm) = 0;
  /// Queues; prepares first if needed, for where the operands lie. `lane` selects the workspace: calls that may run at
  /// once use different lanes.
  virtual base::Status run(const LtGemm& gemm, const LtOperands& operands, int lane, cudaStream_t stream) = 0;
};

}  // namespace overlace::exec
