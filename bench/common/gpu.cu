#include <cuda_runtime.h>

#include <algorithm>
#include <type_traits>
#include <vector>

#include "bench/common/data.h"
#include "bench/common/gpu.h"
#include "src/base/half.h"
#include "src/runtime/backend/cuda_peer/nvml.h"

namespace overlace::bench {
namespace {

base::Status cuda_ok(cudaError_t e, const char* call) {
  return e == cudaSuccess ? base::Status() : base::error(Errc::cuda, "{}: {}", call, cudaGetErrorString(e));
}

class CudaGpu final : public Gpu {
 public:
  explicit CudaGpu(int device) : device_(device), nvml_(device) {}
  ~CudaGpu() override {
    release_all();
    (void)cudaEventDestroy(begin_);
    (void)cudaEventDestroy(end_);
    (void)cudaStreamDestroy(stream_);
  }
  base::Status init() {
    OVERLACE_TRY(cuda_ok(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags"));
    OVERLACE_TRY(cuda_ok(cudaEventCreate(&begin_), "cudaEventCreate"));
    return cuda_ok(cudaEventCreate(&end_), "cudaEventCreate");
  }
  StreamRef stream() override { return StreamRef::cuda(stream_); }
  base::Result<void*> alloc(size_t bytes) override {
    void* p = nullptr;
    if (cudaError_t e = cudaMalloc(&p, bytes == 0 ? 16 : bytes); e != cudaSuccess) {
      return base::error(Errc::out_of_memory, "cudaMalloc of {} bytes: {}", bytes, cudaGetErrorString(e));
    }
    blocks_.push_back(p);
    return p;
  }
  void release_all() override {
    for (void* p : blocks_) (void)cudaFree(p);
    blocks_.clear();
  }
  base::Status synchronize() override { return cuda_ok(cudaDeviceSynchronize(), "cudaDeviceSynchronize"); }
  base::Status memset(void* data, int byte, size_t bytes) override {
    return cuda_ok(cudaMemsetAsync(data, byte, bytes, stream_), "cudaMemsetAsync");
  }
  base::Status copy(void* to, const void* from, size_t bytes) override {
    return cuda_ok(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_), "cudaMemcpyAsync");
  }
  base::Status record_begin() override { return cuda_ok(cudaEventRecord(begin_, stream_), "cudaEventRecord"); }
  base::Status record_end() override { return cuda_ok(cudaEventRecord(end_, stream_), "cudaEventRecord"); }
  base::Status wait_for_begin() override { return cuda_ok(cudaEventSynchronize(begin_), "cudaEventSynchronize"); }
  base::Result<double> elapsed_us() override {
    OVERLACE_TRY(cuda_ok(cudaEventSynchronize(end_), "cudaEventSynchronize"));
    float ms = 0;
    OVERLACE_TRY(cuda_ok(cudaEventElapsedTime(&ms, begin_, end_), "cudaEventElapsedTime"));
    return static_cast<double>(ms) * 1e3;
  }
  base::Result<std::function<base::Status()>> capture(const std::function<base::Status()>& enqueue) override {
    OVERLACE_TRY(cuda_ok(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture"));
    const base::Status queued = enqueue();
    cudaGraph_t graph = nullptr;
    const base::Status ended = cuda_ok(cudaStreamEndCapture(stream_, &graph), "cudaStreamEndCapture");
    cudaGraphExec_t executable = nullptr;
    const base::Status made = queued.ok() && ended.ok()
                                  ? cuda_ok(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate")
                                  : base::Status();
    if (graph != nullptr) (void)cudaGraphDestroy(graph);
    OVERLACE_TRY(queued);
    OVERLACE_TRY(ended);
    OVERLACE_TRY(made);
    const auto release = [](cudaGraphExec_t one) { (void)cudaGraphExecDestroy(one); };
    const std::shared_ptr<std::remove_pointer_t<cudaGraphExec_t>> owner(executable, release);
    return std::function<base::Status()>(
        [owner, stream = stream_] { return cuda_ok(cudaGraphLaunch(owner.get(), stream), "cudaGraphLaunch"); });
  }
  base::Status fill(const TensorView& matrix, const Normal& values) override {
    return fill_normal(matrix, values, stream_);
  }
  base::Result<Check> check(const TensorView& out, const std::vector<Factor>& factors, int64_t first_row, DType operand,
                            int64_t samples, uint64_t seed) override {
    return check_product(out, factors.data(), static_cast<int>(factors.size()), first_row, operand, samples, seed,
                         stream_);
  }
  base::Result<Difference> compare(const TensorView& a, const TensorView& b) override {
    return bench::compare(a, b, stream_);
  }
  base::Result<std::vector<float>> first_values(const TensorView& matrix, int64_t count) override {
    std::vector<float> values(static_cast<size_t>(std::min(count, matrix.numel())));
    std::vector<char> raw(values.size() * dtype_bytes(matrix.dtype));
    OVERLACE_TRY(cuda_ok(cudaMemcpy(raw.data(), matrix.data, raw.size(), cudaMemcpyDeviceToHost), "cudaMemcpy"));
    base::convert_to_float(raw.data(), matrix.dtype, values.data(), static_cast<int64_t>(values.size()));
    return values;
  }
  ClockSample clocks() override {
    const std::optional<runtime::cuda_peer::Clocks> now = nvml_.clocks();
    if (!now) return {};
    return {now->sm_mhz, now->memory_mhz, now->watts, now->celsius, now->throttle, true};
  }
  DeviceInfo describe() override {
    cudaDeviceProp properties{};
    int runtime = 0;
    (void)cudaGetDeviceProperties(&properties, device_);
    (void)cudaRuntimeGetVersion(&runtime);
    DeviceInfo info;
    info.name = properties.name;
    info.cuda = base::format("{}.{}", runtime / 1000, runtime % 1000 / 10);
    info.sms = properties.multiProcessorCount;
    info.l2_bytes = properties.l2CacheSize;
    info.driver = nvml_.driver();
    info.power_limit_w = nvml_.power_limit_w().value_or(0);
    return info;
  }

 private:
  int device_;
  runtime::cuda_peer::Nvml nvml_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  std::vector<void*> blocks_;
};

}  // namespace

base::Result<std::unique_ptr<Gpu>> Gpu::open(int device) {
  OVERLACE_TRY(cuda_ok(cudaSetDevice(device), "cudaSetDevice"));
  auto gpu = std::make_unique<CudaGpu>(device);
  OVERLACE_TRY(gpu->init());
  return std::unique_ptr<Gpu>(std::move(gpu));
}

}  // namespace overlace::bench
