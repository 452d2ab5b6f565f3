#include "src/runtime/engine/nccl/captures.h"

#include <memory>

#include "src/runtime/backend/cuda_peer/check.h"

namespace overlace::runtime::nccl {

using cuda_peer::cuda_status;

base::Status Captures::note(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long capture = 0;
  cudaGraph_t graph = nullptr;
  OVERLACE_TRY(cuda_status(cudaStreamGetCaptureInfo(stream, &status, &capture, &graph), "cudaStreamGetCaptureInfo"));
  if (status != cudaStreamCaptureStatusActive || capture == last_) return {};
  auto* const count = new Count(alive_);
  const auto end = [](void* object) {
    const std::unique_ptr<Count> ended(static_cast<Count*>(object));
    --**ended;
  };
  ++*alive_;
  cudaUserObject_t object = nullptr;
  if (const cudaError_t code = cudaUserObjectCreate(&object, count, end, 1, cudaUserObjectNoDestructorSync);
      code != cudaSuccess) {
    end(count);
    return cuda_status(code, "cudaUserObjectCreate");
  }
  if (const cudaError_t code = cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove);
      code != cudaSuccess) {
    (void)cudaUserObjectRelease(object, 1);  // ends it
    return cuda_status(code, "cudaGraphRetainUserObject");
  }
  last_ = capture;
  return {};
}

}  // namespace overlace::runtime::nccl
