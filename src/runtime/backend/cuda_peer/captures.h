// CUDA graphs that are being captured, and what they keep alive.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "src/base/status.h"

namespace overlace::runtime::cuda_peer {

/// The capture that a stream takes part in.
struct Capture {
  unsigned long long id = 0;  // unique in the process; 0: the stream is not captured
  cudaGraph_t graph = nullptr;
  explicit operator bool() const { return id != 0; }
};
base::Result<Capture> capture_of(cudaStream_t stream);

/// The graph of the capture, and every graph made from it, keeps `what` until it is destroyed. CUDA lets go of it a
/// little later, on a thread of its own, where nothing may call CUDA.
base::Status retain(const Capture& capture, std::shared_ptr<void> what);

}  // namespace overlace::runtime::cuda_peer
