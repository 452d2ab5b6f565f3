#include "src/runtime/backend/cuda_peer/captures.h"

#include <utility>

#include "src/runtime/backend/cuda_peer/check.h"

namespace overlace::runtime::cuda_peer {

base::Result<Capture> capture_of(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  Capture capture;
  OVERLACE_TRY(
      cuda_status(cudaStreamGetCaptureInfo(stream, &status, &capture.id, &capture.graph), "cudaStreamGetCaptureInfo"));
  if (status == cudaStreamCaptureStatusInvalidated)
    return base::error(Errc::capture, "the capture of this stream was invalidated by an earlier error");
  return status == cudaStreamCaptureStatusActive ? capture : Capture{};
}

base::Status retain(const Capture& capture, std::shared_ptr<void> what) {
  auto* const kept = new std::shared_ptr<void>(std::move(what));
  const auto let_go = [](void* object) { delete static_cast<std::shared_ptr<void>*>(object); };
  cudaUserObject_t object = nullptr;
  if (const cudaError_t code = cudaUserObjectCreate(&object, kept, let_go, 1, cudaUserObjectNoDestructorSync);
      code != cudaSuccess) {
    let_go(kept);
    return cuda_status(code, "cudaUserObjectCreate");
  }
  if (const cudaError_t code = cudaGraphRetainUserObject(capture.graph, object, 1, cudaGraphUserObjectMove);
      code != cudaSuccess) {
    (void)cudaUserObjectRelease(object, 1);  // lets go
    return cuda_status(code, "cudaGraphRetainUserObject");
  }
  return {};
}

}  // namespace overlace::runtime::cuda_peer
