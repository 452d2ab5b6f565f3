// The oracle's GEMMs and attention in fp64 on one GPU: operands come from the host and go back, one call at a time.
// Weights come as they are stored, in a fourth of the bytes of fp64 where they are of 16 bits.
#include "src/model/oracle_math.h"

#include <cuda_runtime_api.h>

#include "src/exec/cuda/cublaslt.h"
#include "src/model/cuda/kernels.h"

namespace overlace::model {
namespace {

base::Status check(cudaError_t e, const char* call) {
  return e == cudaSuccess ? base::Status() : base::error(Errc::cuda, "oracle, {}: {}", call, cudaGetErrorString(e));
}

/// A device copy of a host matrix, for one call.
class Block {
 public:
  ~Block() { (void)cudaFree(data_); }
  base::Status make(int64_t n, DType dtype = DType::fp64) {
    bytes_ = static_cast<size_t>(n) * dtype_bytes(dtype);
    if (cudaError_t e = cudaMalloc(&data_, bytes_); e != cudaSuccess) {
      (void)cudaGetLastError();
      return base::error(Errc::out_of_memory, "oracle: cudaMalloc of {} bytes: {}", bytes_, cudaGetErrorString(e));
    }
    return {};
  }
  base::Status upload(const void* host, int64_t n, DType dtype = DType::fp64) {
    OVERLACE_TRY(make(n, dtype));
    return check(cudaMemcpy(data_, host, bytes_, cudaMemcpyHostToDevice), "cudaMemcpy to the device");
  }
  base::Status download(double* host) {
    return check(cudaMemcpy(host, data_, bytes_, cudaMemcpyDeviceToHost), "cudaMemcpy to the host");
  }
  void* data() { return data_; }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

class CudaOracleMath final : public OracleMath {
 public:
  CudaOracleMath(int device, std::unique_ptr<exec::CublasLt> blas) : device_(device), blas_(std::move(blas)) {}

  base::Status gemm(const double* a, const void* w, DType w_dtype, double* c, int64_t m, int64_t n,
                    int64_t k) override {
    if (m == 0 || n == 0) return {};
    OVERLACE_TRY(check(cudaSetDevice(device_), "cudaSetDevice"));
    Block da, stored, exact, dc;
    OVERLACE_TRY(da.upload(a, m * k));
    OVERLACE_TRY(stored.upload(w, n * k, w_dtype));
    if (w_dtype != DType::fp64) {
      OVERLACE_TRY(exact.make(n * k));
      OVERLACE_TRY(launch_convert(stored.data(), w_dtype, exact.data(), DType::fp64, n * k, nullptr));
    }
    OVERLACE_TRY(dc.make(m * n));
    exec::LtGemm g;
    g.m = m;
    g.n = n;
    g.k = g.lda = g.ldb = k;
    g.ldc = n;
    g.in = g.out = DType::fp64;
    OVERLACE_TRY(blas_->run(
        g, {.a = da.data(), .b = w_dtype == DType::fp64 ? stored.data() : exact.data(), .c = dc.data()}, 0, nullptr));
    return dc.download(c);
  }

  base::Status attention(const Attention& x) override {
    if (x.tokens == 0) return {};
    OVERLACE_TRY(check(cudaSetDevice(device_), "cudaSetDevice"));
    Block q, k, v, out;
    const int64_t q_cols = x.heads * x.dim, kv_cols = x.kv_heads * x.dim;
    OVERLACE_TRY(q.upload(x.q, x.tokens * q_cols));
    OVERLACE_TRY(k.upload(x.k, x.tokens * kv_cols));
    OVERLACE_TRY(v.upload(x.v, x.tokens * kv_cols));
    OVERLACE_TRY(out.make(x.tokens * q_cols));
    const PlainAttentionLaunch launch{.q = q.data(),
                                      .k = k.data(),
                                      .v = v.data(),
                                      .out = out.data(),
                                      .batch = x.tokens / x.length,
                                      .sequence = x.length,
                                      .heads = x.heads,
                                      .kv_heads = x.kv_heads,
                                      .head_dim = x.dim,
                                      .pitch = q_cols,
                                      .kv_pitch = kv_cols,
                                      .out_pitch = q_cols,
                                      .window = x.window,
                                      .dtype = DType::fp64};
    OVERLACE_TRY(launch_attention(launch, nullptr));
    return out.download(x.out);
  }

 private:
  int device_;
  std::unique_ptr<exec::CublasLt> blas_;
};

}  // namespace

base::Result<std::unique_ptr<OracleMath>> make_cuda_oracle_math(int device) {
  base::Result<std::unique_ptr<exec::CublasLt>> blas = exec::CublasLt::open(device);
  if (!blas.ok()) return blas.status();
  return std::unique_ptr<OracleMath>(std::make_unique<CudaOracleMath>(device, std::move(blas).value()));
}

}  // namespace overlace::model
