#include "src/gnn/pipeline/loader_device.h"

namespace overlace::gnn {

#ifndef OVERLACE_HAS_CUDA
base::Result<std::unique_ptr<LoaderDevice>> open_gpu(int ordinal) {
  return base::error(
      Errc::not_supported,
      "a loader on GPU {}: this build has no CUDA (OVERLACE_CUDA=OFF, or nvcc was not found), wanted one with it",
      ordinal);
}
#endif

}  // namespace overlace::gnn
