#include "src/ops/striped/queue.h"

#include <cstring>

#include "overlace/runtime.h"
#include "overlace/signal.h"
#include "overlace/team.h"
#include "src/ops/reduce/bodies.h"
#include "src/runtime/state.h"

namespace overlace::ops::striped {
namespace {

bool is_gpu(Channel& channel) { return channel.team().runtime().backend() == Backend::cuda_peer; }

base::Status meet_on_cpu(Channel& channel) {
  const Errc code = barrier(channel.pod());
  if (code == Errc::ok) return {};
  const base::Status cause = runtime::cause_status(channel.team().runtime());
  return cause.ok() ? base::error(code, "striped matrix: {}", errc_name(code)) : cause;
}

void copy_on_cpu(const TensorView& from, const TensorView& to) {
  const size_t element = dtype_bytes(from.dtype), bytes = static_cast<size_t>(from.dim(1)) * element;
  for (int64_t row = 0; row < from.dim(0); ++row)
    std::memcpy(static_cast<char*>(to.data) + static_cast<size_t>(row * to.stride(0)) * element,
                static_cast<const char*>(from.data) + static_cast<size_t>(row * from.stride(0)) * element, bytes);
}

}  // namespace

base::Status meet(Channel& channel) { return is_gpu(channel) ? meet_on_gpu(channel) : meet_on_cpu(channel); }

base::Status add(Channel& channel, const std::vector<TensorView>& sources, const TensorView& to) {
  if (is_gpu(channel)) return add_on_gpu(channel, sources, to);
  sum_on_cpu({.sources = sources, .bias = {}, .dst = to});
  return {};
}

base::Status copy(Channel& channel, const TensorView& from, const TensorView& to) {
  if (is_gpu(channel)) return copy_on_gpu(channel, from, to);
  copy_on_cpu(from, to);
  return {};
}

#if !defined(OVERLACE_HAS_CUDA)  // no channel has a GPU
base::Status meet_on_gpu(Channel&) {
  return base::error(Errc::not_supported, "striped matrix: this build has no CUDA, wanted OVERLACE_CUDA=ON");
}
base::Status add_on_gpu(Channel& channel, const std::vector<TensorView>&, const TensorView&) {
  return meet_on_gpu(channel);
}
base::Status copy_on_gpu(Channel& channel, const TensorView&, const TensorView&) { return meet_on_gpu(channel); }
#endif

}  // namespace overlace::ops::striped
