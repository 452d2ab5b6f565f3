#include "src/runtime/async_collective/int8.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace overlace::runtime {
namespace {

struct Packed {
  std::vector<float> seen, left;
};

Packed packed_of(const std::vector<float>& values) {
  std::vector<char> bytes(int8_bytes(values.size()) + 1, '\x55');
  Packed out{std::vector<float>(values.size()), std::vector<float>(values.size(), 7.0f)};
  pack_int8(values.data(), out.left.data(), values.size(), bytes.data());
  EXPECT_EQ(bytes.back(), '\x55') << "it wrote more than it said";
  unpack_int8(bytes.data(), values.size(), out.seen.data());
  return out;
}

TEST(Int8, IsAByteAValueAndAScaleForEach256) {
  EXPECT_EQ(int8_bytes(0), 0u);
  EXPECT_EQ(int8_bytes(1), 5u);
  EXPECT_EQ(int8_bytes(256), 260u);
  EXPECT_EQ(int8_bytes(257), 265u);
  float nothing = 0;
  EXPECT_EQ(wire_bytes({&nothing, 513, DType::fp32, "x", &nothing}), int8_bytes(513));
  EXPECT_EQ(wire_bytes({&nothing, 513, DType::bf16, "x"}), 1026u);
}

TEST(Int8, WhatIsSeenAndWhatIsLeftAreTheValueExactly) {
  std::mt19937 draw(5);
  for (const size_t count : {size_t{1}, size_t{255}, size_t{256}, size_t{257}, size_t{1000}, size_t{4096}}) {
    std::vector<float> values(count);
    for (size_t i = 0; i < count; ++i) {
      // Each block has a size of its own, and within it values of many sizes.
      const double size = std::exp2(static_cast<double>(i / 256 * 7) - 20.0 - static_cast<double>(draw() % 12));
      values[i] = static_cast<float>(size * (static_cast<double>(draw()) / 2147483648.0 - 1));
    }
    const Packed got = packed_of(values);
    for (size_t begin = 0; begin < count; begin += 256) {
      double largest = 0;
      const size_t end = std::min(count, begin + 256);
      for (size_t i = begin; i < end; ++i) largest = std::max(largest, std::abs(static_cast<double>(values[i])));
      for (size_t i = begin; i < end; ++i) {
        EXPECT_EQ(static_cast<double>(got.seen[i]) + static_cast<double>(got.left[i]), static_cast<double>(values[i]));
        EXPECT_LE(std::abs(static_cast<double>(got.left[i])), largest / 127 * 0.501) << i << " of " << count;
      }
    }
  }
}

TEST(Int8, TiesGoToEvenAndTheLargestStaysItself) {
  const std::vector<float> values = {127, -127, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, 0.4f};
  EXPECT_EQ(packed_of(values).seen, (std::vector<float>{127, -127, 0, 2, 2, 0, -2, 0}));
}

TEST(Int8, ABlockThatIsNotFiniteIsNanAndLeavesNothing) {
  constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
  for (const float bad : {kInf, -kInf, kNan, -kNan, std::numeric_limits<float>::max(), -0x1p127f}) {
    std::vector<float> values(600, 1.0f);
    values[300] = bad;
    const Packed got = packed_of(values);
    for (size_t i = 0; i < values.size(); ++i) {
      EXPECT_EQ(std::isnan(got.seen[i]), i >= 256 && i < 512) << i << " beside " << bad;
      EXPECT_TRUE(std::isfinite(got.left[i])) << i;
      if (i / 256 == 1) {
        EXPECT_EQ(got.left[i], 0) << i;
      }
    }
  }
  std::vector<float> largest(3, 0x1.fffffep126f);
  EXPECT_TRUE(std::isfinite(packed_of(largest).seen[0]));
}

TEST(Int8, WhatIsTooSmallIsLeftWhole) {
  const std::vector<float> values = {0, 1e-45f, -1e-39f, 1.2e-38f};
  const Packed got = packed_of(values);
  EXPECT_EQ(got.seen, std::vector<float>(4, 0.0f));
  EXPECT_EQ(got.left, values);
}

}  // namespace
}  // namespace overlace::runtime
