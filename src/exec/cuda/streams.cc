#include "src/exec/cuda/streams.h"

#include <algorithm>
#include <random>

#include "src/base/half.h"
#include "src/runtime/backend/cuda_peer/stream_ops.h"

namespace overlace::exec {

base::Status cuda_status(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return {};
  return base::error(Errc::cuda, "{}: {}", call, cudaGetErrorString(error));
}

base::Status copy_view(const TensorView& from, const TensorView& to, cudaStream_t stream) {
  if (from.numel() == 0) return {};
  const size_t element = dtype_bytes(from.dtype);
  const int last = from.ndim - 1;
  const auto row = static_cast<size_t>(from.dim(last)) * element;
  if (from.ndim == 1) return runtime::cuda_peer::stream_put(to.data, from.data, row, stream);
  const auto rows = static_cast<size_t>(from.dim(0));
  const auto from_pitch = static_cast<size_t>(from.stride(0)) * element,
             to_pitch = static_cast<size_t>(to.stride(0)) * element;
  if (from.ndim != 2) return base::error(Errc::not_supported, "a copy of {} dimensions; wanted 1 or 2", from.ndim);
  if (from_pitch == row && to_pitch == row)
    return runtime::cuda_peer::stream_put(to.data, from.data, row * rows, stream);
  return runtime::cuda_peer::stream_put_2d(to.data, to_pitch, from.data, from_pitch, row, rows, stream);
}

base::Status clear_rows(const TensorView& t, cudaStream_t stream) {
  const size_t element = dtype_bytes(t.dtype), row = static_cast<size_t>(t.dim(1)) * element;
  const size_t pitch = std::max(static_cast<size_t>(t.stride(0)) * element, row);  // of a single row: anything
  return cuda_status(cudaMemset2DAsync(t.data, pitch, 0, row, static_cast<size_t>(t.dim(0)), stream),
                     "cudaMemset2DAsync");
}

LaneStreams::~LaneStreams() {
  for (auto& [lane, stream] : streams_) (void)cudaStreamDestroy(stream);
}

base::Status LaneStreams::get(const spec::Lane& lane, cudaStream_t* out) {
  auto [it, is_new] = streams_.try_emplace(lane, nullptr);
  if (is_new || it->second == nullptr) {
    int lowest = 0, highest = 0;
    OVERLACE_TRY(cuda_status(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "cudaDeviceGetStreamPriorityRange"));
    OVERLACE_TRY(cuda_status(cudaStreamCreateWithPriority(&it->second, cudaStreamNonBlocking, highest),
                             "cudaStreamCreateWithPriority"));
  }
  *out = it->second;
  return {};
}

base::Status LaneStreams::synchronize() const {
  for (const auto& [lane, stream] : streams_)
    OVERLACE_TRY(cuda_status(cudaStreamSynchronize(stream), "cudaStreamSynchronize"));
  return {};
}

Events::~Events() {
  for (cudaEvent_t event : events_) {
    if (event != nullptr) (void)cudaEventDestroy(event);
  }
}

base::Status Events::make(size_t i) {
  if (events_[i] != nullptr) return {};
  return cuda_status(cudaEventCreateWithFlags(&events_[i], cudaEventDisableTiming), "cudaEventCreateWithFlags");
}

}  // namespace overlace::exec
