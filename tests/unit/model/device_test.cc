#include "src/model/device.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <numbers>
#include <stop_token>
#include <tuple>

#include "src/base/half.h"
#include "src/model/oracle_math.h"
#include "src/model/rope.h"
#include "src/model/weights.h"

namespace overlace::model {
namespace {

/// A matrix of a dtype with its exact values as doubles.
struct Matrix {
  Matrix(int64_t rows, int64_t cols, DType dtype, uint64_t tensor) : bytes(static_cast<size_t>(rows * cols) * 8) {
    view = TensorView::contiguous(bytes.data(), dtype, {rows, cols});
    SeededMatrix m;
    m.key = tensor_key(77, tensor);
    fill_seeded(m, rows, cols, dtype, bytes.data());
  }
  double at(int64_t i, int64_t j) const { return base::load_element(bytes.data(), view.dtype, i * view.dim(1) + j); }
  std::vector<double> values() const {
    std::vector<double> all;
    for (int64_t i = 0; i < view.numel(); ++i) all.push_back(base::load_element(bytes.data(), view.dtype, i));
    return all;
  }
  TensorView row() const { return TensorView::contiguous(view.data, view.dtype, {view.dim(1)}); }
  std::vector<char> bytes;
  TensorView view;
};

/// Relative to magnitudes of about `scale`: a few roundings of the type.
double tolerance(DType dtype, double scale) {
  return scale * (dtype == DType::fp32 ? 0x1p-20 : dtype == DType::fp16 ? 0x1p-10 : 0x1p-7);
}

class DeviceTest : public ::testing::TestWithParam<DType> {
 protected:
  std::unique_ptr<Device> device_ = make_cpu_device();
};

TEST_P(DeviceTest, AddNormAddsRoundsAndNormalises) {
  const int64_t rows = 5, n = 33;
  for (Norm kind : {Norm::rms, Norm::layer}) {
    Matrix x(rows, n, GetParam(), 1), delta(rows, n, GetParam(), 2), out(rows, n, GetParam(), 3);
    const Matrix weight(1, n, GetParam(), 4), bias(1, n, GetParam(), 5), before = x;
    AddNormArgs args{x.view, delta.view, out.view, kind, 1e-5, weight.row(), bias.row()};
    if (kind == Norm::rms) args.bias = {};
    ASSERT_TRUE(device_->add_norm(args).ok());
    for (int64_t i = 0; i < rows; ++i) {
      double mean = 0, square = 0;
      for (int64_t j = 0; j < n; ++j) {
        const double sum = base::load_element(before.bytes.data(), GetParam(), i * n + j) + delta.at(i, j);
        EXPECT_NEAR(x.at(i, j), sum, tolerance(GetParam(), 4));
        mean += kind == Norm::layer ? x.at(i, j) / static_cast<double>(n) : 0;
      }
      for (int64_t j = 0; j < n; ++j) square += (x.at(i, j) - mean) * (x.at(i, j) - mean) / static_cast<double>(n);
      for (int64_t j = 0; j < n; ++j) {
        const double want = (x.at(i, j) - mean) / std::sqrt(square + 1e-5) * weight.at(0, j);
        EXPECT_NEAR(out.at(i, j), kind == Norm::layer ? want + bias.at(0, j) : want, tolerance(GetParam(), 8));
      }
    }
  }
}

TEST_P(DeviceTest, AddNormWithoutDeltaKeepsXAndWithoutOutOnlyAdds) {
  Matrix x(3, 8, GetParam(), 1), out(3, 8, GetParam(), 2), delta(3, 8, GetParam(), 3);
  const Matrix weight(1, 8, GetParam(), 4);
  const std::vector<double> before = x.values();
  AddNormArgs args;
  args.x = x.view;
  args.out = out.view;
  args.weight = weight.row();
  args.eps = 1e-6;
  ASSERT_TRUE(device_->add_norm(args).ok());
  EXPECT_EQ(x.values(), before);
  args = {};
  args.x = x.view;
  args.delta = delta.view;
  ASSERT_TRUE(device_->add_norm(args).ok());
  for (int64_t i = 0; i < 3; ++i)
    for (int64_t j = 0; j < 8; ++j)
      EXPECT_NEAR(x.at(i, j), before[static_cast<size_t>(i * 8 + j)] + delta.at(i, j), tolerance(GetParam(), 4));
}

TEST_P(DeviceTest, ActivationsAreTheirFormulas) {
  const int64_t rows = 4, n = 19;
  Matrix in(rows, 2 * n, GetParam(), 1), out(rows, n, GetParam(), 2);
  ASSERT_TRUE(device_->activation({Activation::swiglu, in.view, out.view}).ok());
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < n; ++j) {
      const double gate = in.at(i, j);
      EXPECT_NEAR(out.at(i, j), gate / (1 + std::exp(-gate)) * in.at(i, n + j), tolerance(GetParam(), 8));
    }
  for (Activation kind : {Activation::gelu_tanh, Activation::gelu_erf, Activation::relu}) {
    Matrix same(rows, 2 * n, GetParam(), 3);
    ASSERT_TRUE(device_->activation({kind, in.view, same.view}).ok());
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < 2 * n; ++j) {
        const double x = in.at(i, j);
        const double tanh_form =
            0.5 * x * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
        const double want = kind == Activation::relu        ? std::max(x, 0.0)
                            : kind == Activation::gelu_tanh ? tanh_form
                                                            : 0.5 * x * std::erfc(-x / std::numbers::sqrt2);
        EXPECT_NEAR(same.at(i, j), want, tolerance(GetParam(), 4));
      }
  }
}

TEST_P(DeviceTest, RopeNormalisesAndRotatesByThePositionInTheSequence) {
  const int64_t heads = 3, kv_heads = 1, dim = 8, length = 5, tokens = 10;
  Matrix qkv(tokens, (heads + 2 * kv_heads) * dim, GetParam(), 1);
  const Matrix before = qkv, q_norm(1, dim, GetParam(), 2), k_norm(1, dim, GetParam(), 3);
  std::vector<float> cosine, sine;
  for (int64_t p = 0; p < length; ++p)
    for (int64_t i = 0; i < dim / 2; ++i) {
      const double angle = static_cast<double>(p) / std::pow(10.0, static_cast<double>(i));
      cosine.push_back(static_cast<float>(std::cos(angle)));
      sine.push_back(static_cast<float>(std::sin(angle)));
    }
  RopeArgs args;
  args.heads = {qkv.view, heads, kv_heads, dim, length};
  args.cosine = TensorView::contiguous(cosine.data(), DType::fp32, {length, dim / 2});
  args.sine = TensorView::contiguous(sine.data(), DType::fp32, {length, dim / 2});
  args.q_norm = q_norm.row();
  args.k_norm = k_norm.row();
  args.eps = 1e-6;
  ASSERT_TRUE(device_->rope(args).ok());
  const auto old = [&](int64_t t, int64_t c) {
    return base::load_element(before.bytes.data(), GetParam(), t * qkv.view.dim(1) + c);
  };
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t h = 0; h < heads + kv_heads; ++h) {
      double square = 0;
      for (int64_t i = 0; i < dim; ++i) square += old(t, h * dim + i) * old(t, h * dim + i) / static_cast<double>(dim);
      const auto normed = [&](int64_t i) {
        return old(t, h * dim + i) / std::sqrt(square + 1e-6) * (h < heads ? q_norm : k_norm).at(0, i);
      };
      for (int64_t i = 0; i < dim / 2; ++i) {
        const double angle = static_cast<double>(t % length) / std::pow(10.0, static_cast<double>(i));
        const double a = normed(i), b = normed(i + dim / 2);
        EXPECT_NEAR(qkv.at(t, h * dim + i), a * std::cos(angle) - b * std::sin(angle), tolerance(GetParam(), 8));
        EXPECT_NEAR(qkv.at(t, h * dim + i + dim / 2), a * std::sin(angle) + b * std::cos(angle),
                    tolerance(GetParam(), 8));
      }
    }
    for (int64_t c = (heads + kv_heads) * dim; c < qkv.view.dim(1); ++c) EXPECT_EQ(qkv.at(t, c), old(t, c));
  }
}

TEST_P(DeviceTest, FillMakesThatPart) {
  SeededMatrix m;
  m.key = 5;
  m.first_row = 2;
  m.first_col = 3;
  Matrix out(4, 6, GetParam(), 9);
  ASSERT_TRUE(device_->fill(m, out.view).ok());
  for (int64_t i = 0; i < 4; ++i)
    for (int64_t j = 0; j < 6; ++j)
      EXPECT_NEAR(out.at(i, j), static_cast<double>(normal_at(row_key(5, 2 + i), 3 + j)), tolerance(GetParam(), 4));
}

INSTANTIATE_TEST_SUITE_P(Dtypes, DeviceTest, ::testing::Values(DType::fp32, DType::bf16, DType::fp16),
                         [](const auto& test) { return std::string(dtype_name(test.param)); });

struct AttentionCase {
  int64_t sequences, length, heads, kv_heads, dim, window;
};
class AttentionTest : public ::testing::TestWithParam<std::tuple<AttentionCase, DType>> {};

TEST_P(AttentionTest, AgreesWithTheDirectFormula) {
  const auto& [c, dtype] = GetParam();
  const int64_t tokens = c.sequences * c.length;
  const Matrix qkv(tokens, (c.heads + 2 * c.kv_heads) * c.dim, dtype, 11);
  Matrix out(tokens, c.heads * c.dim, dtype, 12);
  AttentionArgs args;
  args.heads = {qkv.view, c.heads, c.kv_heads, c.dim, c.length};
  args.out = out.view;
  args.window = c.window;
  const auto device = make_cpu_device();
  const base::Status status = device->attention(args);
  ASSERT_TRUE(status.ok()) << status.message();
  std::vector<double> q, k, v, want(static_cast<size_t>(tokens * c.heads * c.dim));
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t j = 0; j < qkv.view.dim(1); ++j) {
      const int64_t head = j / c.dim;
      (head < c.heads ? q : head < c.heads + c.kv_heads ? k : v).push_back(qkv.at(t, j));
    }
  const auto math = make_cpu_oracle_math(1);
  ASSERT_TRUE(math->attention({q.data(), k.data(), v.data(), want.data(), tokens, c.length, c.heads, c.kv_heads, c.dim,
                               c.window})
                  .ok());
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t j = 0; j < out.view.dim(1); ++j)
      ASSERT_NEAR(out.at(t, j), want[static_cast<size_t>(t * out.view.dim(1) + j)], tolerance(dtype, 4))
          << t << " " << j;
}

INSTANTIATE_TEST_SUITE_P(
    All, AttentionTest,
    ::testing::Combine(::testing::Values(AttentionCase{1, 1, 1, 1, 2, 0}, AttentionCase{2, 7, 4, 2, 6, 0},
                                         AttentionCase{1, 300, 2, 2, 16, 0}, AttentionCase{2, 150, 6, 2, 8, 0},
                                         AttentionCase{1, 300, 4, 1, 8, 5}, AttentionCase{3, 40, 2, 1, 4, 1},
                                         AttentionCase{1, 40, 2, 1, 4, 1000}, AttentionCase{1, 600, 1, 1, 5, 0}),
                       ::testing::Values(DType::fp32, DType::bf16)));

TEST(OracleMathTest, GemmIsThePlainSum) {
  for (const auto& [m, n, k] : {std::tuple{1, 1, 1}, {5, 3, 2}, {67, 9, 300}, {130, 21, 513}}) {
    const auto value = [](int64_t i) { return static_cast<double>((i * 7919) % 17 - 8); };
    std::vector<double> a(static_cast<size_t>(m * k)), w(static_cast<size_t>(n * k)),
        c(static_cast<size_t>(m * n), NAN);
    for (size_t i = 0; i < a.size(); ++i) a[i] = value(static_cast<int64_t>(i));
    for (size_t i = 0; i < w.size(); ++i) w[i] = value(static_cast<int64_t>(i) + 5);
    for (int threads : {1, 3}) {
      const auto math = make_cpu_oracle_math(threads);
      for (const DType dtype : {DType::fp64, DType::fp32, DType::fp16, DType::bf16}) {
        std::vector<char> stored(w.size() * dtype_bytes(dtype));
        for (size_t i = 0; i < w.size(); ++i) base::store_element(stored.data(), dtype, static_cast<int64_t>(i), w[i]);
        c.assign(c.size(), NAN);
        ASSERT_TRUE(math->gemm(a.data(), stored.data(), dtype, c.data(), m, n, k).ok());
        for (int i = 0; i < m; ++i)
          for (int j = 0; j < n; ++j) {
            double want = 0;
            for (int p = 0; p < k; ++p) want += a[static_cast<size_t>(i * k + p)] * w[static_cast<size_t>(j * k + p)];
            ASSERT_EQ(c[static_cast<size_t>(i * n + j)], want)
                << m << " " << n << " " << k << ": " << i << " " << j << " of weights in " << dtype_name(dtype);
          }
      }
    }
  }
}

TEST(OracleMathTest, EndsWhereItIsStopped) {
  std::stop_source stop;
  const auto math = make_cpu_oracle_math(2, stop.get_token());
  const std::vector<double> a(200 * 4, 1), w(3 * 4, 1);
  std::vector<double> c(200 * 3, NAN), out(200 * 4, NAN);
  ASSERT_TRUE(math->gemm(a.data(), w.data(), DType::fp64, c.data(), 200, 3, 4).ok());
  EXPECT_EQ(c.back(), 4);
  c.assign(c.size(), NAN);
  stop.request_stop();
  EXPECT_EQ(math->gemm(a.data(), w.data(), DType::fp64, c.data(), 200, 3, 4).code(), Errc::aborted);
  EXPECT_EQ(math->attention({a.data(), a.data(), a.data(), out.data(), 200, 200, 1, 1, 4, 0}).code(), Errc::aborted);
  EXPECT_TRUE(std::isnan(c.back()));
  EXPECT_TRUE(std::isnan(out.back()));
}

TEST(OracleMathTest, ParallelForCoversAllOnceAndRethrows) {
  for (int threads : {1, 2, 5})
    for (int64_t n : {0, 1, 3, 1000}) {
      std::vector<std::atomic<int>> seen(static_cast<size_t>(n));
      parallel_for(n, threads, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) ++seen[static_cast<size_t>(i)];
      });
      for (const auto& count : seen) EXPECT_EQ(count.load(), 1);
    }
  EXPECT_THROW(parallel_for(10, 3, [](int64_t, int64_t) { throw std::bad_alloc(); }), std::bad_alloc);
}

TEST(RopeTest, Llama3KeepsShortWavesAndStretchesLongOnes) {
  ModelConfig c;
  c.head_dim = 128;
  c.rope_theta = 500000;
  const std::vector<float> plain = rope_frequencies(c);
  c.rope_scaling = {RopeScaling::Kind::llama3, 8, 1, 4, 8192};
  const std::vector<float> scaled = rope_frequencies(c);
  ASSERT_EQ(plain.size(), 64u);
  EXPECT_EQ(plain[0], 1);
  EXPECT_NEAR(static_cast<double>(plain[32]), std::pow(500000.0, -0.5), 1e-9);
  int blended = 0;
  for (size_t i = 0; i < 64; ++i) {
    const double wave = 2 * std::numbers::pi / static_cast<double>(plain[i]);
    if (wave < 8192 / 4.0) {
      EXPECT_EQ(scaled[i], plain[i]) << i;
    } else if (wave > 8192) {
      EXPECT_EQ(scaled[i], plain[i] / 8) << i;
    } else {
      ++blended;
      EXPECT_LT(scaled[i], plain[i]) << i;
      EXPECT_GT(scaled[i], plain[i] / 8) << i;
    }
  }
  EXPECT_GT(blended, 2);
  c.rope_scaling = {RopeScaling::Kind::linear, 4, 1, 4, 8192};
  EXPECT_EQ(rope_frequencies(c)[5], plain[5] / 4);
}

}  // namespace
}  // namespace overlace::model
