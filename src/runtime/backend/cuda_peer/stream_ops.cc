#include "src/runtime/backend/cuda_peer/stream_ops.h"

#include "src/base/env.h"
#include "src/runtime/backend/cuda_peer/check.h"
#include "src/runtime/backend/cuda_peer/driver.h"

namespace overlace::runtime::cuda_peer {
namespace {

CUdeviceptr device_address(const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }

}  // namespace

base::Result<bool> is_capturing(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  OVERLACE_TRY(cuda_status(cudaStreamIsCapturing(stream, &status), "cudaStreamIsCapturing"));
  return status != cudaStreamCaptureStatusNone;
}

StreamCaps query_stream_caps(int device) {
  StreamCaps caps;
  const base::Result<const Driver*> api = driver();
  if (!api.ok()) return caps;
  CUdevice handle = 0;
  if ((*api)->cuDeviceGet(&handle, device) != CUDA_SUCCESS) return caps;
  const auto has = [&](CUdevice_attribute attribute) {
    int value = 0;
    return (*api)->cuDeviceGetAttribute(&value, attribute, handle) == CUDA_SUCCESS && value != 0;
  };
  caps.write_value = has(CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS);
  // With one hardware queue a waiting stream holds back the stream that would end its wait.
  caps.wait_value = caps.write_value && base::env().cuda_device_max_connections != 1;
  caps.wait_flush = caps.wait_value && has(CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES);
  return caps;
}

base::Status stream_put(void* dst, const void* src, size_t bytes, cudaStream_t stream) {
  if (bytes == 0) return {};
  return cuda_status(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToDevice, stream), "cudaMemcpyAsync");
}

base::Status stream_put_2d(void* dst, size_t dst_pitch, const void* src, size_t src_pitch, size_t row_bytes,
                           size_t rows, cudaStream_t stream) {
  if (row_bytes == 0 || rows == 0) return {};
  if (row_bytes > dst_pitch || row_bytes > src_pitch)
    return base::invalid_argument("stream_put_2d: rows of {} bytes, pitches {} and {}; wanted rows <= both pitches",
                                  row_bytes, dst_pitch, src_pitch);
  if (row_bytes == dst_pitch && row_bytes == src_pitch) return stream_put(dst, src, row_bytes * rows, stream);
  return cuda_status(
      cudaMemcpy2DAsync(dst, dst_pitch, src, src_pitch, row_bytes, rows, cudaMemcpyDeviceToDevice, stream),
      "cudaMemcpy2DAsync");
}

base::Status stream_post(uint64_t* slot, const uint64_t* epoch_cell, cudaStream_t stream) {
  return cuda_status(cudaMemcpyAsync(slot, epoch_cell, sizeof(uint64_t), cudaMemcpyDeviceToDevice, stream),
                     "cudaMemcpyAsync (post)");
}

base::Status stream_write(uint64_t* slot, uint64_t value, const StreamCaps& caps, cudaStream_t stream) {
  if (!caps.write_value)
    return base::error(Errc::not_supported,
                       "stream_write: the device has no stream memory operations of 64 bits; wanted: stream_post");
  base::Result<bool> capturing = is_capturing(stream);
  if (!capturing.ok()) return capturing.status();
  if (*capturing)
    return base::error(Errc::capture,
                       "stream_write: a capture would freeze the value {}; wanted: stream_post or a node", value);
  const base::Result<const Driver*> api = driver();
  if (!api.ok()) return api.status();
  return (*api)->status(
      (*api)->cuStreamWriteValue64(stream, device_address(slot), value, CU_STREAM_WRITE_VALUE_DEFAULT),
      "cuStreamWriteValue64");
}

base::Status stream_wait(const uint64_t* word, uint64_t value, bool written_by_peer, const StreamCaps& caps,
                         cudaStream_t stream) {
  if (!caps.wait_value)
    return base::error(
        Errc::not_supported,
        "stream_wait: the device has no stream memory operations of 64 bits, or CUDA_DEVICE_MAX_CONNECTIONS "
        "is 1; wanted: launch_wait");
  if (written_by_peer && !caps.wait_flush)
    return base::error(Errc::not_supported,
                       "stream_wait: the device cannot order a peer's writes before the wait; wanted: launch_wait");
  base::Result<bool> capturing = is_capturing(stream);
  if (!capturing.ok()) return capturing.status();
  if (*capturing && written_by_peer)
    return base::error(Errc::capture, "stream_wait: a capture would freeze the awaited value {}; wanted: launch_wait",
                       value);
  const base::Result<const Driver*> api = driver();
  if (!api.ok()) return api.status();
  unsigned flags = CU_STREAM_WAIT_VALUE_GEQ;
  if (written_by_peer) flags |= CU_STREAM_WAIT_VALUE_FLUSH;
  return (*api)->status((*api)->cuStreamWaitValue64(stream, device_address(word), value, flags), "cuStreamWaitValue64");
}

base::Status stream_reset(void* counters, size_t bytes, cudaStream_t stream) {
  return cuda_status(cudaMemsetAsync(counters, 0, bytes, stream), "cudaMemsetAsync");
}

}  // namespace overlace::runtime::cuda_peer
