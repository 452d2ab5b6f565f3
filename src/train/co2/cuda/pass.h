// The pass and the numbers of a boundary on a GPU; twins of pass.h and control.h, queued on a stream. The host decides
// nothing: verdict, gap and bounds stay in device memory. Has never run: see docs/design/co2.md.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "src/base/status.h"
#include "src/train/co2/pass.h"

namespace overlace::train {

/// Elements that one block takes; its sums are added in order, so that groups get the same bits.
inline constexpr int64_t kCudaPiece = 16384;

struct CudaPiece {
  int32_t tensor = 0;
  int64_t begin = 0, count = 0;  // in the tensor
};

/// Pieces of the parameters of a bucket, in order.
std::vector<CudaPiece> cuda_pieces(std::span<const PassTensor> tensors);

/// All pointers are to device memory; `tensors` have one dtype.
struct CudaPass {
  PassMode mode = PassMode::fused;
  int64_t groups = 1;
  DType dtype = DType::fp32;
  const ControlPod* control = nullptr;
  const PassTensor* tensors = nullptr;
  const TensorPod* bounds = nullptr;
  SumsPod* sums = nullptr;  // by tensor
  int64_t num_tensors = 0;
  const CudaPiece* pieces = nullptr;
  SumsPod* parts = nullptr;  // by piece, scratch
  int64_t num_pieces = 0;
  PassMemory memory;
};

/// Errc::cuda where a launch fails.
base::Status queue_pass(const CudaPass& pass, void* cuda_stream);

/// begin_boundary: `sum` may be null. Reads the header where it was reduced.
base::Status queue_begin(ControlPod* control, TensorPod* tensors, const SumsPod* sums, int64_t num_tensors,
                         const HeaderPod* sum, const HeaderPod* own, const KnobsPod& knobs, void* cuda_stream);

/// end_boundary.
base::Status queue_end(ControlPod* control, const KnobsPod& knobs, void* cuda_stream);

}  // namespace overlace::train
