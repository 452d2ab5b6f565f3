// Meetings, sums and copies of striped matrices on a stream.
#include "src/ops/striped/queue.h"

#include <cuda_runtime_api.h>

#include "overlace/handle_pod.h"
#include "overlace/runtime.h"
#include "overlace/team.h"
#include "src/ops/reduce/launch.h"
#include "src/runtime/backend/cuda_peer/check.h"
#include "src/runtime/backend/cuda_peer/nodes.h"

namespace overlace::ops::striped {
namespace {

using runtime::cuda_peer::DeviceGuard;

cudaStream_t stream_of(const Channel& channel) { return static_cast<cudaStream_t>(channel.stream().cuda_stream); }

}  // namespace

base::Status meet_on_gpu(Channel& channel) {
  const DeviceGuard guard(channel.team().runtime().device());
  const ChannelPod& pod = channel.pod();
  return runtime::cuda_peer::launch_barrier(stream_of(channel), pod.team, pod.barrier_id);
}

base::Status add_on_gpu(Channel& channel, const std::vector<TensorView>& sources, const TensorView& to) {
  const DeviceGuard guard(channel.team().runtime().device());
  return launch_reduce({.sources = sources.data(),
                        .count = static_cast<int>(sources.size()),
                        .bias = {},
                        .dst = to,
                        .cuda_stream = channel.stream().cuda_stream});
}

// NOTE: a run of rows lies in one part, which is one allocation: CUDA looks up where an address lies, and a copy that
// crossed from part to part would be refused.
base::Status copy_on_gpu(Channel& channel, const TensorView& from, const TensorView& to) {
  const DeviceGuard guard(channel.team().runtime().device());
  const size_t element = dtype_bytes(from.dtype), width = static_cast<size_t>(from.dim(1)) * element;
  const auto pitch = [&](const TensorView& t) {
    return t.dim(0) > 1 ? static_cast<size_t>(t.stride(0)) * element : width;
  };
  return runtime::cuda_peer::cuda_status(
      cudaMemcpy2DAsync(to.data, pitch(to), from.data, pitch(from), width, static_cast<size_t>(from.dim(0)),
                        cudaMemcpyDeviceToDevice, stream_of(channel)),
      "cudaMemcpy2DAsync");
}

}  // namespace overlace::ops::striped
