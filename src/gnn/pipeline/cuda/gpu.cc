// The lanes of a loader as streams of a GPU.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

#include "src/base/env.h"
#include "src/gnn/pipeline/loader_device.h"
#include "src/runtime/backend/cuda_peer/check.h"

namespace overlace::gnn {
namespace {

using runtime::cuda_peer::cuda_status;
using runtime::cuda_peer::DeviceGuard;
using Clock = std::chrono::steady_clock;

/// Whether a query says that all is done, looked at until `end`.
template <class Query>
base::Result<bool> look_until(Clock::time_point end, const char* call, const Query& query) {
  constexpr auto kPause = std::chrono::microseconds(20);
  while (true) {
    const cudaError_t code = query();
    if (code == cudaSuccess) return true;
    if (code != cudaErrorNotReady) return cuda_status(code, call);
    (void)cudaGetLastError();
    if (Clock::now() >= end) return false;
    std::this_thread::sleep_for(kPause);
  }
}

class Gpu final : public LoaderDevice {
 public:
  explicit Gpu(int ordinal) : ordinal_(ordinal) {}

  ~Gpu() override {
    const DeviceGuard guard(ordinal_);
    (void)drain();
    for (const cudaEvent_t event : events_) (void)cudaEventDestroy(event);
    for (const cudaStream_t stream : own_)
      if (stream != nullptr) (void)cudaStreamDestroy(stream);
    for (void* memory : memory_) (void)cudaFree(memory);  // behind what the caller's stream still reads
    for (void* memory : pinned_) (void)cudaHostUnregister(memory);
    (void)cudaGetLastError();
  }

  base::Status open() {
    const DeviceGuard guard(ordinal_);
    int least = 0;
    OVERLACE_TRY(cuda_status(cudaDeviceGetStreamPriorityRange(&least, nullptr), "cudaDeviceGetStreamPriorityRange"));
    for (cudaStream_t& stream : own_)  // who trains comes first
      OVERLACE_TRY(cuda_status(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, least),
                               "cudaStreamCreateWithPriority"));
    return load_gather_kernels();
  }

  base::Status enter() override {
    // Streams of other threads may be captured meanwhile: what this thread calls must not end their captures.
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    OVERLACE_TRY(cuda_status(cudaThreadExchangeStreamCaptureMode(&mode), "cudaThreadExchangeStreamCaptureMode"));
    return cuda_status(cudaSetDevice(ordinal_), "cudaSetDevice");
  }

  base::Result<std::byte*> allocate(int64_t bytes) override {
    const DeviceGuard guard(ordinal_);
    void* memory = nullptr;
    OVERLACE_TRY(cuda_status(cudaMalloc(&memory, static_cast<size_t>(std::max<int64_t>(bytes, 1))), "cudaMalloc"));
    memory_.push_back(memory);
    return static_cast<std::byte*>(memory);
  }

  base::Status pin(std::span<std::byte> memory) override {
    if (memory.empty()) return {};
    const DeviceGuard guard(ordinal_);
    const auto status =
        cuda_status(cudaHostRegister(memory.data(), memory.size(), cudaHostRegisterPortable | cudaHostRegisterMapped),
                    "cudaHostRegister");
    if (!status.ok())
      return base::error(Errc::not_supported, "{} bytes cannot be pinned for GPU {}, wanted for its gather: {}",
                         memory.size(), ordinal_, status.message());
    pinned_.push_back(memory.data());
    return {};
  }

  base::Status make_events(int count) override {
    const DeviceGuard guard(ordinal_);
    for (int i = 0; i < count; ++i) {
      cudaEvent_t event = nullptr;
      OVERLACE_TRY(cuda_status(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags"));
      events_.push_back(event);
    }
    return {};
  }

  void set_caller(void* stream) override { caller_ = static_cast<cudaStream_t>(stream); }

  base::Status copy(Lane lane, std::byte* to, const std::byte* from, int64_t bytes, int64_t pitch,
                    int64_t count) override {
    const auto width = static_cast<size_t>(bytes), rows = static_cast<size_t>(count);
    if (width == 0 || rows == 0) return {};
    const DeviceGuard guard(ordinal_);
    if (bytes == pitch || count == 1)
      return cuda_status(cudaMemcpyAsync(to, from, width * rows, cudaMemcpyHostToDevice, stream(lane)),
                         "cudaMemcpyAsync");
    return cuda_status(cudaMemcpy2DAsync(to, width, from, static_cast<size_t>(pitch), width, rows,
                                         cudaMemcpyHostToDevice, stream(lane)),
                       "cudaMemcpy2DAsync");
  }

  base::Status gather(Lane lane, DeviceGather gather) override {
    gather.device = ordinal_;
    return queue_gather_rows(gather, stream(lane));
  }

  base::Status record(Lane lane, int event) override {
    const DeviceGuard guard(ordinal_);  // a caller's stream may be the default one, which is that of the current device
    return cuda_status(cudaEventRecord(at(event), stream(lane)), "cudaEventRecord");
  }

  base::Status wait(Lane lane, int event) override {
    const DeviceGuard guard(ordinal_);
    return cuda_status(cudaStreamWaitEvent(stream(lane), at(event), 0), "cudaStreamWaitEvent");
  }

  base::Result<bool> reached(int event, int64_t timeout_ms) override {
    return look_until(Clock::now() + std::chrono::milliseconds(timeout_ms), "cudaEventQuery",
                      [&] { return cudaEventQuery(at(event)); });
  }

  base::Status drain() override {
    const DeviceGuard guard(ordinal_);
    const auto end = Clock::now() + std::chrono::seconds(base::env().timeout_s);
    for (const cudaStream_t stream : own_) {
      if (stream == nullptr) continue;
      const auto done = look_until(end, "cudaStreamQuery", [&] { return cudaStreamQuery(stream); });
      if (!done.ok()) return done.status();
      if (!*done)
        return base::error(Errc::timeout, "GPU {}: what a loader has queued was not done, wanted within {} s", ordinal_,
                           base::env().timeout_s);
    }
    return {};
  }

 private:
  cudaStream_t stream(Lane lane) const { return lane == Lane::caller ? caller_ : own_[static_cast<size_t>(lane)]; }
  cudaEvent_t at(int event) const { return events_[static_cast<size_t>(event)]; }

  const int ordinal_;
  cudaStream_t own_[2] = {nullptr, nullptr};  // transfer, gather
  cudaStream_t caller_ = nullptr;
  std::vector<cudaEvent_t> events_;
  std::vector<void*> memory_, pinned_;
};

}  // namespace

base::Result<std::unique_ptr<LoaderDevice>> open_gpu(int ordinal) {
  int count = 0;
  if (const base::Status status = cuda_status(cudaGetDeviceCount(&count), "cudaGetDeviceCount"); !status.ok())
    return base::error(Errc::not_supported, "a loader on GPU {}, wanted one that CUDA finds: {}", ordinal,
                       status.message());
  if (ordinal < 0 || ordinal >= count)
    return base::error(Errc::not_supported, "a loader on GPU {}, wanted one below {}, the GPUs of this process",
                       ordinal, count);
  auto gpu = std::make_unique<Gpu>(ordinal);
  OVERLACE_TRY(gpu->open());
  return std::unique_ptr<LoaderDevice>(std::move(gpu));
}

}  // namespace overlace::gnn
