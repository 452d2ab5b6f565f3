// The dense operators of one rank on a GPU: exact operands, the call, what must come out; and ranks as threads.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "overlace/error.h"
#include "overlace/ops/ag_gemm.h"
#include "overlace/ops/gemm_ar.h"
#include "overlace/ops/gemm_rs.h"
#include "overlace/runtime.h"
#include "src/base/half.h"
#include "src/base/status.h"
#include "src/ops/common/reference.h"
#include "src/runtime/backend.h"

namespace overlace {

/// Ranks that share a device keep many streams busy at once: with fewer hardware queues one could wait behind another.
inline const bool kManyQueues = (::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0), true);

inline int device_count() {
  static const int count = runtime::cuda_device_count(nullptr);
  return count;
}

inline constexpr int kTeamSizes[] = {1, 2, 4};  // where there are fewer GPUs, ranks share them
/// With calls behind each other, whose kernels fill the GPU: two ranks on one GPU, else as many as there are GPUs.
inline std::vector<int> team_sizes() {
  if (device_count() >= 4) return {1, 2, 4};
  return {1, 2};
}

inline void cuda_ok(cudaError_t e) {
  if (e != cudaSuccess) throw std::runtime_error(cudaGetErrorString(e));
}

/// Host values and their device copy.
class Matrix {
 public:
  Matrix(int64_t rows, int64_t cols, DType dtype) : rows_(rows), cols_(cols), dtype_(dtype) {
    host_.resize(static_cast<size_t>(rows * cols) * dtype_bytes(dtype), 0xff);
    cuda_ok(cudaMalloc(&device_, std::max<size_t>(host_.size(), 16)));
    upload();
  }
  ~Matrix() { (void)cudaFree(device_); }
  Matrix(const Matrix&) = delete;
  Matrix& operator=(const Matrix&) = delete;
  void set(int64_t i, double value) { base::store_element(host_.data(), dtype_, i, value); }
  double get(int64_t i) const { return base::load_element(host_.data(), dtype_, i); }
  void upload() {
    cuda_ok(cudaMemcpy(device_, host_.data(), host_.size(), cudaMemcpyHostToDevice));
    finish();
  }
  void download() { cuda_ok(cudaMemcpy(host_.data(), device_, host_.size(), cudaMemcpyDeviceToHost)); }
  void poison() {
    cuda_ok(cudaMemset(device_, 0xff, host_.size()));
    finish();
  }
  TensorView device() { return TensorView::contiguous(device_, dtype_, {rows_, cols_}); }
  TensorView host() { return TensorView::contiguous(host_.data(), dtype_, {rows_, cols_}); }
  int64_t size() const { return rows_ * cols_; }
  const std::vector<unsigned char>& bytes() const { return host_; }

 private:
  /// Both may return before the device is done, and operators run on streams that do not wait for the default one.
  static void finish() { cuda_ok(cudaStreamSynchronize(cudaStreamLegacy)); }
  int64_t rows_, cols_;
  DType dtype_;
  std::vector<unsigned char> host_;
  void* device_ = nullptr;
};

/// -1, 0 or 1, different for every tensor, rank and index: sums stay far below 256, where bf16 is exact in any order.
inline double exact_value(int tensor, int rank, int64_t i) {
  uint64_t x = static_cast<uint64_t>(i) * 0x9e3779b97f4a7c15ull +
               static_cast<uint64_t>(tensor * 64 + rank) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 29)) * 0x94d049bb133111ebull;
  return static_cast<double>((x >> 40) % 3) - 1;
}

inline void fill(Matrix& m, int tensor, int rank) {
  for (int64_t i = 0; i < m.size(); ++i) m.set(i, exact_value(tensor, rank, i));
  m.upload();
}

struct Problem {
  std::string op;
  int64_t m = 0, n = 0, k = 0;
  DType dtype = DType::bf16;
  spec::BLayout layout = spec::BLayout::nk;
  bool bias = false;
  std::vector<int64_t> row_offsets{};
  bool swiglu = false;  // ag_gemm, with an even n
  std::optional<DType> out_dtype{};

  DType result() const { return out_dtype.value_or(dtype); }
  int64_t columns() const { return swiglu ? n / 2 : n; }  // of the result
  spec::Activation activation() const { return swiglu ? spec::Activation::swiglu : spec::Activation::none; }
};

/// One rank's operands and call.
class Site {
 public:
  Site(const Problem& p, Channel& channel) : p_(p), channel_(channel), rank_(channel.team().rank()) {
    spec::OpSpec op;
    op.op = p.op;
    op.m = p.m;
    op.n = p.n;
    op.k = p.k;
    op.ranks = channel.team().size();
    op.dtype = p.dtype;
    op.out_dtype = p.result();
    op.b_layout = p.layout;
    op.bias = p.bias;
    op.activation = p.activation();
    op.row_offsets = p.row_offsets;
    op_ = op;
    off_ = spec::row_offsets(op);
    a_ = make_a(rank_);
    b_ = make_b(rank_);
    bias_ = std::make_unique<Matrix>(1, p.n, p.result());
    fill(*bias_, 3, 0);
    out_ = std::make_unique<Matrix>(out_rows(), p.columns(), p.result());
    want_ = reference();       // frees device memory, which waits for the device:
    channel.team().barrier();  // not beside the call of a peer that shares it
  }

  const spec::OpSpec& op() const { return op_; }
  Matrix& out() { return *out_; }
  /// Operands as buffers of a schedule: A, and B as it is stored.
  TensorView a() { return a_->device(); }
  TensorView b() { return b_->device(); }
  int64_t mine() const { return off_[static_cast<size_t>(rank_) + 1] - off_[static_cast<size_t>(rank_)]; }

  void run(const spec::Schedule& schedule) { run(schedule, p_.result()); }
  /// With the bias's memory as of this type.
  void run(const spec::Schedule& schedule, DType bias_dtype) {
    TensorView bias;
    if (p_.bias) bias = TensorView::contiguous(bias_->device().data, bias_dtype, {p_.n});
    const TensorView b = p_.layout == spec::BLayout::nk ? b_->device().transposed() : b_->device();
    if (p_.op == "ag_gemm") {
      ops::run(channel_,
               ops::AgGemmArgs{.a_shard = a_->device(),
                               .b = b,
                               .c = out_->device(),
                               .bias = bias,
                               .a = {},
                               .row_offsets = p_.row_offsets,
                               .activation = p_.activation()},
               schedule);
    } else if (p_.op == "gemm_rs") {
      ops::run(channel_,
               ops::GemmRsArgs{
                   .a = a_->device(), .b = b, .out = out_->device(), .bias = bias, .row_offsets = p_.row_offsets},
               schedule);
    } else {
      ops::run(channel_, ops::GemmArArgs{.a = a_->device(), .b = b, .out = out_->device(), .bias = bias}, schedule);
    }
  }

  /// Empty if every element is exact; of swiglu, which is made of exact sums: near.
  std::string mismatch() {
    out_->download();
    const int64_t columns = p_.columns(), first = p_.op == "gemm_rs" ? off_[static_cast<size_t>(rank_)] * columns : 0;
    for (int64_t i = 0; i < out_->size(); ++i) {
      const double w = want_[static_cast<size_t>(first + i)], got = out_->get(i);
      const double room = p_.swiglu ? ulp_of(w) : 0;
      if (!(std::abs(got - w) <= room)) {
        return base::format("rank {} element ({}, {}): got {}, want {}", rank_, i / columns, i % columns, got, w);
      }
    }
    return {};
  }

 private:
  /// The ulp of the output's type; of fp32, by the special function units, many.
  double ulp_of(double x) const {
    const int bits = p_.result() == DType::bf16 ? 7 : p_.result() == DType::fp16 ? 10 : 16;
    return std::ldexp(std::abs(x), -bits) + 0x1p-24;
  }
  int64_t out_rows() const { return p_.op == "gemm_rs" ? mine() : p_.m; }
  std::unique_ptr<Matrix> make_a(int rank) {
    const bool is_ag = p_.op == "ag_gemm";
    const size_t r = static_cast<size_t>(rank);
    auto a = std::make_unique<Matrix>(is_ag ? off_[r + 1] - off_[r] : p_.m, p_.k, p_.dtype);
    fill(*a, 1, rank);
    return a;
  }
  std::unique_ptr<Matrix> make_b(int rank) {
    const bool nk = p_.layout == spec::BLayout::nk;
    auto b = std::make_unique<Matrix>(nk ? p_.n : p_.k, nk ? p_.k : p_.n, p_.dtype);
    fill(*b, 2, rank);
    return b;
  }
  std::vector<double> reference() {
    std::vector<std::unique_ptr<Matrix>> a, b;
    std::vector<TensorView> a_views, b_views;
    for (int r = 0; r < op_.ranks; ++r) {
      a.push_back(make_a(r));
      b.push_back(make_b(p_.op == "ag_gemm" ? rank_ : r));
      a_views.push_back(a.back()->host());
      b_views.push_back(p_.layout == spec::BLayout::nk ? b.back()->host().transposed() : b.back()->host());
    }
    TensorView bias;
    if (p_.bias) bias = TensorView::contiguous(bias_->host().data, p_.result(), {p_.n});
    return p_.op == "ag_gemm" ? ops::ag_gemm_reference(a_views, b_views[0], bias, p_.activation())
                              : ops::gemm_sum_reference(a_views, b_views, bias);
  }

  Problem p_;
  Channel& channel_;
  int rank_;
  spec::OpSpec op_;
  std::vector<int64_t> off_;
  std::unique_ptr<Matrix> a_, b_, bias_, out_;
  std::vector<double> want_;
};

/// Runs `body` on n rank threads and gives the first failure's text.
inline std::string on_ranks(int n, const std::function<void(Runtime&, cudaStream_t)>& body,
                            size_t heap_bytes = size_t{512} << 20) {
  std::vector<std::unique_ptr<Bootstrap>> bootstraps = thread_bootstraps(n);
  std::mutex mutex;
  std::string failure;
  std::vector<std::thread> threads;
  for (int r = 0; r < n; ++r) {
    threads.emplace_back([&, r] {
      try {
        cuda_ok(cudaSetDevice(r % device_count()));
        RuntimeOptions options;
        options.backend = Backend::cuda_peer;
        options.device = r % device_count();
        options.heap_bytes = heap_bytes;
        options.timeout_ms = 20000;
        Runtime runtime = Runtime::open(*bootstraps[static_cast<size_t>(r)], options);
        cudaStream_t stream = nullptr;
        cuda_ok(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        try {
          body(runtime, stream);
          runtime.synchronize();
        } catch (const std::exception& e) {
          runtime.abort(Errc::internal, e.what());
          throw;
        }
        runtime.close();
        (void)cudaStreamDestroy(stream);
      } catch (const std::exception& e) {
        const std::lock_guard<std::mutex> lock(mutex);
        if (failure.empty()) failure = base::format("rank {}: {}", r, e.what());
      }
    });
  }
  for (std::thread& t : threads) t.join();
  return failure;
}

/// Waits for this rank's GPU; where ranks share one, for all of them: waiting for a GPU must not meet a peer's next
/// call.
inline void settle(Runtime& runtime) {
  runtime.synchronize();
  if (runtime.world().size() > device_count()) runtime.world().barrier();
}

inline void require(const std::string& mismatch, const std::string& where) {
  if (!mismatch.empty()) throw std::runtime_error(where + ": " + mismatch);
}

}  // namespace overlace
