#include "src/model/cpu/vector_math.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

namespace overlace::model::cpu {
namespace {

class VectorMathTest : public ::testing::TestWithParam<const VectorMath* (*)()> {
 protected:
  const VectorMath& math_ = *GetParam()();
};

/// n values from -reach to reach, in no order.
std::vector<float> spread(int64_t n, float reach) {
  std::vector<float> x;
  for (int64_t i = 0; i < n; ++i) x.push_back(reach * (static_cast<float>((i * 7919) % 2003) / 1001.0f - 1.0f));
  return x;
}

TEST_P(VectorMathTest, LargestOfAnyLength) {
  for (int64_t n = 1; n < 40; ++n)
    for (int64_t at = 0; at < n; ++at) {
      std::vector<float> x(static_cast<size_t>(n) + 1, -5.0f);
      x[static_cast<size_t>(n)] = 100;  // behind the end
      x[static_cast<size_t>(at)] = -2.5f;
      ASSERT_EQ(math_.largest(x.data(), n), -2.5f) << n << " " << at;
    }
}

TEST_P(VectorMathTest, ExpSumIsExpWithinTwoUlpAndStaysInside) {
  for (int64_t n : {1, 7, 8, 9, 255, 256, 257, 1000}) {
    std::vector<float> x = spread(n, 40), before = x;
    x.push_back(77);
    const float shift = 40;
    const double sum = math_.exp_sum(x.data(), n, shift);
    double want_sum = 0;
    for (size_t i = 0; i < static_cast<size_t>(n); ++i) {
      const double want = std::exp(static_cast<double>(before[i] - shift));
      want_sum += want;
      ASSERT_NEAR(static_cast<double>(x[i]), want, want * 0x1p-22) << before[i];
    }
    EXPECT_NEAR(sum, want_sum, want_sum * 0x1p-20 + 1e-30);
    EXPECT_EQ(x[static_cast<size_t>(n)], 77);
  }
}

TEST_P(VectorMathTest, ExpOfFarValuesIsTiny) {
  std::vector<float> x = {0, -86, -1e4f, -INFINITY};
  EXPECT_NEAR(math_.exp_sum(x.data(), 4, 0), 1, 1e-12);
  EXPECT_EQ(x[0], 1);
  EXPECT_GT(x[1], 0);
  for (size_t i : {2u, 3u}) EXPECT_LE(x[i], 2e-38f);
}

TEST_P(VectorMathTest, ActivationsAreTheirFormulas) {
  for (int64_t n : {1, 5, 8, 2003}) {
    const std::vector<float> before = spread(n, 30);
    std::vector<float> a = before, b = before;
    a.push_back(7);
    b.push_back(7);
    math_.silu(a.data(), n);
    math_.gelu_tanh(b.data(), n);
    for (size_t i = 0; i < before.size(); ++i) {
      const double x = static_cast<double>(before[i]);
      ASSERT_NEAR(static_cast<double>(a[i]), x / (1 + std::exp(-x)), std::abs(x) * 0x1p-21) << x;
      const double u = std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x);
      ASSERT_NEAR(static_cast<double>(b[i]), 0.5 * x * (1 + std::tanh(u)), std::abs(x) * 0x1p-20) << x;
    }
    EXPECT_EQ(a.back(), 7);
    EXPECT_EQ(b.back(), 7);
  }
}

TEST_P(VectorMathTest, Fp64BlockAddsOnlyItsPart) {
  const int64_t depth = 19, a_pitch = 23, c_pitch = 11;
  std::vector<double> a(4 * a_pitch), w(8 * depth);
  for (size_t i = 0; i < a.size(); ++i) a[i] = static_cast<double>(i % 13) - 6;
  for (size_t i = 0; i < w.size(); ++i) w[i] = static_cast<double>(i % 11) - 5;
  for (int64_t rows = 1; rows <= 4; ++rows)
    for (int64_t cols = 1; cols <= 8; ++cols) {
      std::vector<double> c(4 * c_pitch, 0.5);
      math_.fp64_block({a.data(), w.data(), c.data(), a_pitch, c_pitch, rows, cols, depth});
      for (int64_t i = 0; i < 4; ++i)
        for (int64_t j = 0; j < c_pitch; ++j) {
          double want = 0.5;
          for (int64_t p = 0; p < depth && i < rows && j < cols; ++p)
            want += a[static_cast<size_t>(i * a_pitch + p)] * w[static_cast<size_t>(p * 8 + j)];
          ASSERT_EQ(c[static_cast<size_t>(i * c_pitch + j)], want) << rows << " " << cols << ": " << i << " " << j;
        }
    }
}

INSTANTIATE_TEST_SUITE_P(All, VectorMathTest,
                         ::testing::Values([]() { return &plain_vector_math(); }, []() { return &vector_math(); }),
                         [](const auto& test) { return test.index == 0 ? "plain" : "chosen"; });

}  // namespace
}  // namespace overlace::model::cpu
