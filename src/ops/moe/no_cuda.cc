// GPUs in builds without CUDA, where no channel has one.
#include "src/ops/moe/gpu_layer.h"

#if !defined(OVERLACE_HAS_CUDA)

namespace overlace::ops::moe {

base::Status check_gpu_layer(Channel&, const MoeSpec&) {
  return base::error(Errc::not_supported, "moe_open: this build has no CUDA");
}
base::Result<std::unique_ptr<GpuLayer>> open_gpu_layer(Channel& channel, const MoeSpec& spec) {
  return check_gpu_layer(channel, spec);
}

}  // namespace overlace::ops::moe

#endif
