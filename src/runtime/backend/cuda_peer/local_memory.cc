#include "src/runtime/backend/cuda_peer/local_memory.h"

#include <map>
#include <mutex>
#include <vector>

#include "src/runtime/backend/cuda_peer/check.h"

namespace overlace::runtime::cuda_peer {
namespace {

template <class Queue>
base::Status done(Queue queue, const char* call) {
  const base::Result<cudaStream_t> stream = setup_stream();
  if (!stream.ok()) return stream.status();
  OVERLACE_TRY(cuda_status(queue(*stream), call));
  return cuda_status(cudaStreamSynchronize(*stream), "cudaStreamSynchronize");
}

}  // namespace

base::Result<cudaStream_t> setup_stream() {
  static std::mutex* const mutex = new std::mutex;  // outlive exit handlers
  static auto* const streams = new std::map<int, cudaStream_t>;
  int device = 0;
  OVERLACE_TRY(cuda_status(cudaGetDevice(&device), "cudaGetDevice"));
  const std::lock_guard lock(*mutex);
  cudaStream_t& stream = (*streams)[device];
  if (stream == nullptr)
    OVERLACE_TRY(cuda_status(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags"));
  return stream;
}

base::Status fill(void* memory, int byte, size_t bytes) {
  return done([&](cudaStream_t stream) { return cudaMemsetAsync(memory, byte, bytes, stream); }, "cudaMemsetAsync");
}

base::Status upload(void* device, const void* host, size_t bytes) {
  return done([&](cudaStream_t stream) { return cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, stream); },
              "cudaMemcpyAsync");
}

base::Status download(void* host, const void* device, size_t bytes) {
  return done([&](cudaStream_t stream) { return cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, stream); },
              "cudaMemcpyAsync");
}

LocalMemory::~LocalMemory() {
  if (data_ == nullptr) return;
  const DeviceGuard guard(device_);
  (void)cudaFreeAsync(data_, stream_);
}

base::Result<LocalMemory> LocalMemory::queue(size_t bytes, const char* what) {
  LocalMemory out;
  OVERLACE_TRY(cuda_status(cudaGetDevice(&out.device_), "cudaGetDevice"));
  const base::Result<cudaStream_t> stream = setup_stream();
  if (!stream.ok()) return stream.status();
  out.stream_ = *stream;
  if (const cudaError_t code = cudaMallocAsync(&out.data_, bytes, out.stream_); code != cudaSuccess) {
    const base::Status status = cuda_status(code, "cudaMallocAsync");
    return base::error(status.code(), "{} of {} bytes: {}", what, bytes, status.message());
  }
  return out;
}

base::Result<LocalMemory> LocalMemory::allocate(size_t bytes, const char* what) {
  base::Result<LocalMemory> out = queue(bytes, what);
  if (out.ok()) OVERLACE_TRY(cuda_status(cudaStreamSynchronize(out->stream_), "cudaStreamSynchronize"));
  return out;
}

base::Result<LocalMemory> LocalMemory::filled(int byte, size_t bytes, const char* what) {
  // A few bytes travel by a copy engine: a kernel that fills them would wait for SMs, which calls may hold.
  constexpr size_t kFew = size_t{64} << 10;
  if (bytes <= kFew)
    return copy_of(std::vector<unsigned char>(bytes, static_cast<unsigned char>(byte)).data(), bytes, what);
  base::Result<LocalMemory> out = queue(bytes, what);
  if (out.ok()) OVERLACE_TRY(fill(out->data_, byte, bytes));
  return out;
}

base::Result<LocalMemory> LocalMemory::copy_of(const void* host, size_t bytes, const char* what) {
  base::Result<LocalMemory> out = queue(bytes, what);
  if (out.ok()) OVERLACE_TRY(upload(out->data_, host, bytes));
  return out;
}

}  // namespace overlace::runtime::cuda_peer
