#include "src/model/device.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <numbers>
#include <vector>

#include "src/base/ceil_div_pod.h"
#include "src/base/half.h"
#include "src/model/cpu/attention.h"
#include "src/model/cpu/vector_math.h"
#include "src/model/weights.h"

namespace overlace::model {
namespace {

using base::Result;
using base::Status;

constexpr size_t kAlignment = 256;

char* row_of(const TensorView& t, int64_t row) {
  return static_cast<char*>(t.data) + row * t.stride(0) * static_cast<int64_t>(dtype_bytes(t.dtype));
}

std::vector<float> vector_of(const TensorView& t) {
  std::vector<float> values;
  if (!t.defined()) return values;
  values.resize(static_cast<size_t>(t.numel()));
  base::convert_to_float(t.data, t.dtype, values.data(), t.numel());
  return values;
}

void rms_norm(float* x, int64_t n, double eps, const float* weight) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  const auto factor = static_cast<float>(1 / std::sqrt(sum / static_cast<double>(n) + eps));
  for (int64_t i = 0; i < n; ++i) x[i] = x[i] * factor * weight[i];
}

void layer_norm(float* x, int64_t n, double eps, const float* weight, const float* bias) {
  double sum = 0, squares = 0;
  for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]);
  const double mean = sum / static_cast<double>(n);
  for (int64_t i = 0; i < n; ++i) squares += (static_cast<double>(x[i]) - mean) * (static_cast<double>(x[i]) - mean);
  const double factor = 1 / std::sqrt(squares / static_cast<double>(n) + eps);
  for (int64_t i = 0; i < n; ++i)
    x[i] = static_cast<float>((static_cast<double>(x[i]) - mean) * factor) * weight[i] + bias[i];
}

void apply(Activation kind, float* x, int64_t n) {
  switch (kind) {
    case Activation::swiglu:
      return cpu::vector_math().silu(x, n);
    case Activation::gelu_tanh:
      return cpu::vector_math().gelu_tanh(x, n);
    case Activation::gelu_erf:
      for (int64_t i = 0; i < n; ++i)
        x[i] = 0.5f * x[i] * (1 + std::erf(x[i] * static_cast<float>(1 / std::numbers::sqrt2)));
      return;
    case Activation::relu:
      for (int64_t i = 0; i < n; ++i) x[i] = std::max(x[i], 0.0f);
  }
}

class CpuDevice final : public Device {
 public:
  Result<void*> alloc(int64_t bytes, std::string_view what) override {
    const size_t rounded = base::round_up(static_cast<size_t>(std::max(bytes, int64_t{1})), kAlignment);
    void* block = std::aligned_alloc(kAlignment, rounded);
    if (block == nullptr)
      return base::error(Errc::out_of_memory, "{}: {} bytes of host memory were asked and not available", what, bytes);
    return block;
  }
  void free(void* block) override { std::free(block); }
  Result<void*> alloc_host(int64_t bytes, std::string_view what) override { return alloc(bytes, what); }
  void free_host(void* block) override { free(block); }
  Result<std::unique_ptr<CopyLane>> make_copy_lane(int) override { return std::unique_ptr<CopyLane>(); }
  Status upload(const void* host, void* device, int64_t bytes) override { return copy(host, device, bytes); }
  Status download(const void* device, void* host, int64_t bytes) override { return copy(device, host, bytes); }
  Status copy(const void* from, void* to, int64_t bytes) override {
    if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
    return {};
  }
  Status synchronize() override { return {}; }

  Status fill(const SeededMatrix& matrix, const TensorView& out) override {
    fill_seeded(matrix, out.dim(0), out.dim(1), out.dtype, out.data);
    return {};
  }

  Status add_norm(const AddNormArgs& args) override {
    const int64_t n = args.x.dim(1);
    const std::vector<float> weight = vector_of(args.weight), bias = vector_of(args.bias);
    std::vector<float> x(static_cast<size_t>(n)), delta(static_cast<size_t>(n));
    for (int64_t i = 0; i < args.x.dim(0); ++i) {
      base::convert_to_float(row_of(args.x, i), args.x.dtype, x.data(), n);
      if (args.delta.defined()) {
        base::convert_to_float(row_of(args.delta, i), args.delta.dtype, delta.data(), n);
        for (size_t j = 0; j < x.size(); ++j) x[j] += delta[j];
        base::convert_from_float(x.data(), row_of(args.x, i), args.x.dtype, n);
        base::convert_to_float(row_of(args.x, i), args.x.dtype, x.data(), n);  // the norm sees the rounded stream
      }
      if (!args.out.defined()) continue;
      if (args.kind == Norm::rms) {
        rms_norm(x.data(), n, args.eps, weight.data());
      } else {
        layer_norm(x.data(), n, args.eps, weight.data(), bias.data());
      }
      base::convert_from_float(x.data(), row_of(args.out, i), args.out.dtype, n);
    }
    return {};
  }

  Status rope(const RopeArgs& args) override {
    const HeadsView& h = args.heads;
    const std::vector<float> q_norm = vector_of(args.q_norm), k_norm = vector_of(args.k_norm);
    const auto* cosine = static_cast<const float*>(args.cosine.data);
    const auto* sine = static_cast<const float*>(args.sine.data);
    const int64_t half = h.head_dim / 2;
    std::vector<float> x(static_cast<size_t>(h.head_dim));
    for (int64_t t = 0; t < h.qkv.dim(0); ++t) {
      const int64_t position = t % h.sequence_length;
      for (int64_t head = 0; head < h.heads + h.kv_heads; ++head) {
        char* place = row_of(h.qkv, t) + head * h.head_dim * static_cast<int64_t>(dtype_bytes(h.qkv.dtype));
        base::convert_to_float(place, h.qkv.dtype, x.data(), h.head_dim);
        if (!q_norm.empty()) rms_norm(x.data(), h.head_dim, args.eps, head < h.heads ? q_norm.data() : k_norm.data());
        if (args.cosine.defined()) rotate(x.data(), half, cosine + position * half, sine + position * half);
        base::convert_from_float(x.data(), place, h.qkv.dtype, h.head_dim);
      }
    }
    return {};
  }

  Status attention(const AttentionArgs& args) override { return cpu::attention(args); }
  std::string attention_by() const override { return "cpu"; }

  Status activation(const ActivationArgs& args) override {
    const int64_t n = args.out.dim(1), n_in = args.in.dim(1);
    std::vector<float> x(static_cast<size_t>(n_in));
    for (int64_t i = 0; i < args.out.dim(0); ++i) {
      base::convert_to_float(row_of(args.in, i), args.in.dtype, x.data(), n_in);
      apply(args.kind, x.data(), n);
      for (size_t j = 0; j < x.size() / 2 && args.kind == Activation::swiglu; ++j) x[j] *= x[x.size() / 2 + j];
      base::convert_from_float(x.data(), row_of(args.out, i), args.out.dtype, n);
    }
    return {};
  }

 private:
  static void rotate(float* x, int64_t half, const float* cosine, const float* sine) {
    for (int64_t i = 0; i < half; ++i) {
      const float a = x[i], b = x[i + half];
      x[i] = a * cosine[i] - b * sine[i];
      x[i + half] = b * cosine[i] + a * sine[i];
    }
  }
};

}  // namespace

std::unique_ptr<Device> make_cpu_device() { return std::make_unique<CpuDevice>(); }

}  // namespace overlace::model
