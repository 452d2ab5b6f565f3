// The decoder layer's device work on one GPU, queued on the channel's stream.
#include "src/model/device.h"

#include <cuda_runtime_api.h>

#include "overlace/runtime.h"
#include "overlace/team.h"
#include "src/base/log.h"
#include "src/model/cuda/copy_lane.h"
#include "src/model/cuda/cudnn_attention.h"
#include "src/model/cuda/kernels.h"

namespace overlace::model {
namespace {

base::Status check(cudaError_t e, const char* call) {
  return e == cudaSuccess ? base::Status() : base::error(Errc::cuda, "{}: {}", call, cudaGetErrorString(e));
}

const void* data_or_null(const TensorView& t) { return t.defined() ? t.data : nullptr; }

class CudaDevice final : public Device {
 public:
  CudaDevice(Channel& channel, std::unique_ptr<CudnnAttention> attention)
      : device_(channel.team().runtime().device()),
        stream_(static_cast<cudaStream_t>(channel.stream().cuda_stream)),
        timeout_ms_(channel.team().runtime().options().timeout_ms),
        attention_(std::move(attention)) {}

  base::Result<void*> alloc(int64_t bytes, std::string_view what) override {
    void* block = nullptr;
    if (cudaError_t e = cudaMalloc(&block, static_cast<size_t>(bytes > 0 ? bytes : 16)); e != cudaSuccess) {
      (void)cudaGetLastError();  // an allocation that failed leaves the device usable
      return base::error(Errc::out_of_memory, "{}: cudaMalloc of {} bytes: {}", what, bytes, cudaGetErrorString(e));
    }
    return block;
  }
  void free(void* block) override { (void)cudaFree(block); }
  base::Result<void*> alloc_host(int64_t bytes, std::string_view what) override {
    void* block = nullptr;
    if (cudaError_t e = cudaHostAlloc(&block, static_cast<size_t>(bytes > 0 ? bytes : 16), cudaHostAllocDefault);
        e != cudaSuccess) {
      (void)cudaGetLastError();
      return base::error(Errc::out_of_memory, "{}: cudaHostAlloc of {} bytes: {}", what, bytes, cudaGetErrorString(e));
    }
    return block;
  }
  void free_host(void* block) override { (void)cudaFreeHost(block); }
  base::Result<std::unique_ptr<CopyLane>> make_copy_lane(int events) override {
    return make_cuda_copy_lane(device_, stream_, events, timeout_ms_);
  }

  base::Status upload(const void* host, void* device, int64_t bytes) override {
    OVERLACE_TRY(check(cudaMemcpyAsync(device, host, static_cast<size_t>(bytes), cudaMemcpyHostToDevice, stream_),
                       "cudaMemcpyAsync to the device"));
    return synchronize();
  }
  // NOTE: while a copy to memory that is not pinned waits for its stream, the driver keeps other threads from the
  // context: a rank that shares the GPU could not queue what the stream waits for.
  base::Status download(const void* device, void* host, int64_t bytes) override {
    OVERLACE_TRY(synchronize());
    OVERLACE_TRY(check(cudaMemcpyAsync(host, device, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost, stream_),
                       "cudaMemcpyAsync to the host"));
    return synchronize();
  }
  base::Status copy(const void* from, void* to, int64_t bytes) override {
    return check(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice, stream_),
                 "cudaMemcpyAsync on the device");
  }
  base::Status synchronize() override { return check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }

  base::Status fill(const SeededMatrix& matrix, const TensorView& out) override {
    const int64_t cols = out.dim(out.ndim - 1);
    return launch_seeded(matrix, out.data, cols == 0 ? 0 : out.numel() / cols, cols, cols, out.dtype, stream_);
  }

  base::Status add_norm(const AddNormArgs& a) override {
    AddNormLaunch p;
    p.x = a.x.data;
    p.delta = data_or_null(a.delta);
    p.out = a.out.defined() ? a.out.data : nullptr;
    p.weight = data_or_null(a.weight);
    p.bias = data_or_null(a.bias);
    p.rows = a.x.dim(0);
    p.cols = a.x.dim(1);
    p.eps = a.eps;
    p.subtract_mean = a.kind == Norm::layer;
    p.dtype = a.x.dtype;
    return launch_add_norm(p, stream_);
  }

  base::Status rope(const RopeArgs& a) override {
    RopeLaunch p;
    p.qkv = a.heads.qkv.data;
    p.q_norm = data_or_null(a.q_norm);
    p.k_norm = data_or_null(a.k_norm);
    p.cos = static_cast<const float*>(data_or_null(a.cosine));
    p.sin = static_cast<const float*>(data_or_null(a.sine));
    p.tokens = a.heads.qkv.dim(0);
    p.sequence = a.heads.sequence_length;
    p.heads = a.heads.heads;
    p.kv_heads = a.heads.kv_heads;
    p.head_dim = a.heads.head_dim;
    p.pitch = a.heads.qkv.stride(0);
    p.eps = a.eps;
    p.dtype = a.heads.qkv.dtype;
    return p.q_norm == nullptr && p.cos == nullptr ? base::Status() : launch_rope(p, stream_);
  }

  base::Status attention(const AttentionArgs& a) override {
    const HeadsView& h = a.heads;
    if (h.qkv.dim(0) == 0) return {};
    const int64_t element = static_cast<int64_t>(dtype_bytes(h.qkv.dtype));
    const char* q = static_cast<const char*>(h.qkv.data);
    const char* k = q + h.heads * h.head_dim * element;
    const char* v = k + h.kv_heads * h.head_dim * element;
    if (attention_ != nullptr && (h.qkv.dtype == DType::bf16 || h.qkv.dtype == DType::fp16)) {
      const AttentionShape shape{.batch = h.qkv.dim(0) / h.sequence_length,
                                 .sequence = h.sequence_length,
                                 .heads = h.heads,
                                 .kv_heads = h.kv_heads,
                                 .head_dim = h.head_dim,
                                 .pitch = h.qkv.stride(0),
                                 .out_pitch = a.out.stride(0),
                                 .window = a.window,
                                 .dtype = h.qkv.dtype};
      const base::Status done = attention_->run(shape, q, k, v, a.out.data, stream_);
      attention_by_ = attention_->version();
      if (done.ok() || done.code() != Errc::not_supported) return done;
      base::warn_once("model", done.message() + "; the plain kernel is used");
    }
    const PlainAttentionLaunch p{.q = q,
                                 .k = k,
                                 .v = v,
                                 .out = a.out.data,
                                 .batch = h.qkv.dim(0) / h.sequence_length,
                                 .sequence = h.sequence_length,
                                 .heads = h.heads,
                                 .kv_heads = h.kv_heads,
                                 .head_dim = h.head_dim,
                                 .pitch = h.qkv.stride(0),
                                 .kv_pitch = h.qkv.stride(0),
                                 .out_pitch = a.out.stride(0),
                                 .window = a.window,
                                 .dtype = h.qkv.dtype};
    attention_by_ = "plain kernel";
    return launch_attention(p, stream_);
  }
  std::string attention_by() const override { return attention_by_; }

  base::Status activation(const ActivationArgs& a) override {
    switch (a.kind) {
      case Activation::swiglu:
        return launch_swiglu(a.in.data, a.out.data, a.out.dim(0), a.out.dim(1), a.out.dtype, stream_);
      case Activation::gelu_tanh:
        return launch_pointwise(Pointwise::gelu_tanh, a.in.data, a.out.data, a.out.numel(), a.out.dtype, stream_);
      case Activation::gelu_erf:
        return launch_pointwise(Pointwise::gelu_erf, a.in.data, a.out.data, a.out.numel(), a.out.dtype, stream_);
      case Activation::relu:
        return launch_pointwise(Pointwise::relu, a.in.data, a.out.data, a.out.numel(), a.out.dtype, stream_);
    }
    return base::error(Errc::internal, "activation {} is unknown", static_cast<int>(a.kind));
  }

 private:
  int device_;
  cudaStream_t stream_;
  int64_t timeout_ms_;                         // of waits of the host
  std::unique_ptr<CudnnAttention> attention_;  // null: the plain kernel
  std::string attention_by_;                   // the last one
};

}  // namespace

base::Result<std::unique_ptr<Device>> make_cuda_device(Channel& channel) {
  OVERLACE_TRY(check(cudaSetDevice(channel.team().runtime().device()), "cudaSetDevice"));
  base::Result<std::unique_ptr<CudnnAttention>> attention = CudnnAttention::open();
  if (!attention.ok()) base::warn_once("model", attention.status().message() + "; attention uses the plain kernel");
  return std::unique_ptr<Device>(std::make_unique<CudaDevice>(
      channel, attention.ok() ? std::move(attention).value() : std::unique_ptr<CudnnAttention>()));
}

}  // namespace overlace::model
