#include "src/base/half.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "overlace/error.h"

namespace overlace::base {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

/// Value of the 16-bit pattern, from the definition of the format.
double value_of(uint16_t bits, int exponent_bits) {
  const int mantissa_bits = 15 - exponent_bits;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits & 0x7FFF) >> mantissa_bits;
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1) return mantissa == 0 ? sign * HUGE_VAL : std::nan("");
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}

TEST(Half, EveryPatternHasItsValueAndComesBack) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const auto b = static_cast<uint16_t>(bits);
    const double fp16 = value_of(b, 5), bf16 = value_of(b, 8);
    if (std::isnan(fp16)) {
      ASSERT_TRUE(std::isnan(fp16_to_float(b)));
      ASSERT_TRUE(std::isnan(fp16_to_float(float_to_fp16(fp16_to_float(b)))));
    } else {
      ASSERT_EQ(static_cast<double>(fp16_to_float(b)), fp16) << bits;
      ASSERT_EQ(float_to_fp16(static_cast<float>(fp16)), b) << bits;
    }
    if (std::isnan(bf16)) {
      ASSERT_TRUE(std::isnan(bf16_to_float(float_to_bf16(bf16_to_float(b)))));
    } else {
      ASSERT_EQ(static_cast<double>(bf16_to_float(b)), bf16) << bits;
      ASSERT_EQ(float_to_bf16(static_cast<float>(bf16)), b) << bits;
    }
  }
}

/// Value of the e4m3 pattern, from the definition: no infinity, and NaN where all bits are set.
double value_of_e4m3(uint8_t bits) {
  const int exponent = (bits >> 3) & 15, mantissa = bits & 7;
  const double sign = (bits & 0x80) != 0 ? -1 : 1;
  if (exponent == 15 && mantissa == 7) return std::nan("");
  return sign * (exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(mantissa + 8, exponent - 10));
}

/// Value of the e5m2 pattern, from the definition, which is IEEE's.
double value_of_e5m2(uint8_t bits) {
  const int exponent = (bits >> 2) & 31, mantissa = bits & 3;
  const double sign = (bits & 0x80) != 0 ? -1 : 1;
  if (exponent == 31) return mantissa == 0 ? sign * HUGE_VAL : std::nan("");
  return sign * (exponent == 0 ? std::ldexp(mantissa, -16) : std::ldexp(mantissa + 4, exponent - 17));
}

struct Format {
  DType dtype;
  double (*value_of)(uint8_t);
  float (*widen)(uint8_t);
  uint8_t (*narrow)(float);
  int largest;  // pattern of the largest finite number
};
constexpr Format kFormats[] = {{DType::e4m3, value_of_e4m3, e4m3_to_float, float_to_e4m3, 0x7E},
                               {DType::e5m2, value_of_e5m2, e5m2_to_float, float_to_e5m2, 0x7B}};

TEST(Fp8, EveryPatternHasItsValueAndComesBack) {
  for (const Format& f : kFormats)
    for (int bits = 0; bits < 256; ++bits) {
      SCOPED_TRACE(std::string(dtype_name(f.dtype)) + " " + std::to_string(bits));
      const auto b = static_cast<uint8_t>(bits);
      const double want = f.value_of(b);
      const float got = f.widen(b);
      ASSERT_EQ(std::signbit(got), bits >= 128);
      if (std::isnan(want)) {
        EXPECT_TRUE(std::isnan(got));
        EXPECT_EQ(f.narrow(got), bits >= 128 ? 0xFF : 0x7F) << "the sign of NaN stays";
        continue;
      }
      ASSERT_EQ(static_cast<double>(got), want);
      ASSERT_EQ(f.narrow(static_cast<float>(want)), b);
    }
}

TEST(Fp8, RoundsToNearestEven) {
  for (const Format& f : kFormats)
    for (int bits = 0; bits < f.largest; ++bits) {  // between each two neighbours
      SCOPED_TRACE(std::string(dtype_name(f.dtype)) + " " + std::to_string(bits));
      const double low = f.value_of(static_cast<uint8_t>(bits)), high = f.value_of(static_cast<uint8_t>(bits + 1));
      const double middle = (low + high) / 2, step = (high - low) / 1024;
      ASSERT_EQ(f.narrow(static_cast<float>(middle)), bits % 2 == 0 ? bits : bits + 1);
      ASSERT_EQ(f.narrow(static_cast<float>(middle - step)), bits);
      ASSERT_EQ(f.narrow(static_cast<float>(-middle - step)), 0x80 | (bits + 1));
      uint8_t element = 0;
      store_element(&element, f.dtype, 0, middle + (high - low) * 0x1p-30);  // one rounding, not two
      ASSERT_EQ(element, bits + 1);
      ASSERT_EQ(load_element(&element, f.dtype, 0), high);
    }
}

TEST(Fp8, BeyondTheLargestE4m3IsNanAndE5m2Infinite) {
  EXPECT_EQ(float_to_e4m3(464), 0x7E) << "half way to 480, which is not there: the even one";
  EXPECT_EQ(float_to_e4m3(std::nextafter(464.0F, kInf)), 0x7F);
  EXPECT_EQ(float_to_e4m3(kInf), 0x7F);
  EXPECT_EQ(float_to_e4m3(-kInf), 0xFF);
  EXPECT_EQ(float_to_e4m3(0x1p-10F), 0) << "half of the least one: to the even one, zero";
  EXPECT_EQ(float_to_e4m3(std::nextafter(0x1p-10F, 1.0F)), 1);
  EXPECT_EQ(value_of_e5m2(0x7B), 57344);
  EXPECT_EQ(float_to_e5m2(std::nextafter(61440.0F, 0.0F)), 0x7B);
  EXPECT_EQ(float_to_e5m2(61440), 0x7C) << "half way to 65536: to the even pattern, infinity";
  EXPECT_EQ(float_to_e5m2(-3e38F), 0xFC);
  EXPECT_EQ(float_to_e5m2(kInf), 0x7C);
  EXPECT_EQ(float_to_e5m2(-kInf), 0xFC);
  EXPECT_EQ(e5m2_to_float(0xFC), -kInf);
  EXPECT_EQ(float_to_e5m2(0x1p-17F), 0) << "half of the least one: to the even one, zero";
  EXPECT_EQ(float_to_e5m2(std::nextafter(0x1p-17F, 1.0F)), 1);
  EXPECT_EQ(float_to_e5m2(-0.0F), 0x80);
}

TEST(Fp8, ArraysAreConvertedAsElementsAre) {
  const float values[] = {1, -0.5F, 3.3F};
  for (const Format& f : kFormats) {
    uint8_t packed[3];
    float back[3];
    convert_from_float(values, packed, f.dtype, 3);
    convert_to_float(packed, f.dtype, back, 3);
    EXPECT_EQ(back[0], 1);
    EXPECT_EQ(back[1], -0.5F);
    EXPECT_EQ(back[2], f.dtype == DType::e4m3 ? 3.25F : 3.5F);
  }
}

/// Nearest of the two patterns around |value|, ties to the even one.
uint16_t nearest(double value, int exponent_bits) {
  const uint16_t infinity = exponent_bits == 5 ? 0x7C00 : 0x7F80;
  uint16_t low = 0, high = infinity;
  while (high - low > 1) {
    const auto middle = static_cast<uint16_t>((low + high) / 2);
    (value_of(middle, exponent_bits) <= std::abs(value) ? low : high) = middle;
  }
  // Beyond the largest finite value the format rounds as if its range went on.
  const double above = high == infinity ? 2 * value_of(static_cast<uint16_t>(high - 1), exponent_bits) -
                                              value_of(static_cast<uint16_t>(high - 2), exponent_bits)
                                        : value_of(high, exponent_bits);
  const double down = std::abs(value) - value_of(low, exponent_bits), up = above - std::abs(value);
  const uint16_t magnitude = down < up || (down == up && low % 2 == 0) ? low : high;
  return static_cast<uint16_t>(magnitude | (std::signbit(value) ? 0x8000 : 0));
}

TEST(Half, RoundsToNearestEven) {
  std::mt19937 random(3);
  for (int i = 0; i < 20000; ++i) {
    const auto sign = static_cast<uint32_t>(random() & 1) << 31;
    // Around fp16's range (subnormals to overflow), and all of float's for bf16.
    const float near_half =
        std::bit_cast<float>(sign | static_cast<uint32_t>((random() % 48 + 100) << 23 | (random() & 0x7FFFFF)));
    ASSERT_EQ(float_to_fp16(near_half), nearest(static_cast<double>(near_half), 5)) << near_half;
    const float any =
        std::bit_cast<float>(sign | static_cast<uint32_t>((random() % 255) << 23 | (random() & 0x7FFFFF)));
    ASSERT_EQ(float_to_bf16(any), nearest(static_cast<double>(any), 8)) << any;
  }
  EXPECT_EQ(float_to_bf16(1 + 0x1p-8f), 0x3F80);      // tie to even
  EXPECT_EQ(float_to_bf16(1 + 3 * 0x1p-8f), 0x3F82);  // tie to even, upwards
  EXPECT_EQ(float_to_fp16(65519.0f), 0x7BFF);
  EXPECT_EQ(float_to_fp16(65520.0f), 0x7C00);
  EXPECT_EQ(float_to_fp16(0x1p-25f), 0x0000);
  EXPECT_EQ(float_to_fp16(std::nextafter(0x1p-25f, 1.0f)), 0x0001);
  EXPECT_EQ(float_to_fp16(-0.0f), 0x8000);
  EXPECT_EQ(float_to_fp16(kInf), 0x7C00);
  EXPECT_EQ(float_to_bf16(-kInf), 0xFF80);
  EXPECT_EQ(float_to_bf16(std::numeric_limits<float>::max()), 0x7F80);
}

TEST(Half, DoublesAreRoundedOnce) {
  std::mt19937_64 random(4);
  uint16_t stored;
  // Rounding to float first would make this a tie, and a tie would go down.
  const double above_tie = 1 + 0x1p-8 + 0x1p-40;
  store_element(&stored, DType::bf16, 0, above_tie);
  EXPECT_EQ(stored, 0x3F81);
  store_element(&stored, DType::bf16, 0, 1 + 3 * 0x1p-8 - 0x1p-40);
  EXPECT_EQ(stored, 0x3F81);
  for (int i = 0; i < 20000; ++i) {
    const double fraction = 1 + static_cast<double>(random() >> 12) * 0x1p-52;
    // Near a tie in half the draws: only the last bits decide.
    const double tie = 1 + static_cast<double>(random() % 2048) * 0x1p-11 + static_cast<double>(random() % 3) * 0x1p-45;
    const double value = std::ldexp(i % 2 == 0 ? fraction : tie, static_cast<int>(random() % 45) - 27);
    store_element(&stored, DType::fp16, 0, value);
    ASSERT_EQ(stored, nearest(value, 5)) << value;
    store_element(&stored, DType::bf16, 0, -value);
    ASSERT_EQ(stored, nearest(-value, 8)) << value;
  }
  store_element(&stored, DType::bf16, 0, 1e300);
  EXPECT_EQ(stored, 0x7F80);
  store_element(&stored, DType::fp16, 0, -1e300);
  EXPECT_EQ(stored, 0xFC00);
  store_element(&stored, DType::fp16, 0, std::nan(""));
  EXPECT_TRUE(std::isnan(fp16_to_float(stored)));
}

TEST(Half, ElementsAndArraysOfEachType) {
  for (DType dtype : {DType::fp64, DType::fp32, DType::fp16, DType::bf16}) {
    std::vector<std::byte> array(dtype_bytes(dtype) * 9);
    std::vector<float> in, out(9);
    for (int i = 0; i < 9; ++i) in.push_back(static_cast<float>(i * 8 - 31));
    convert_from_float(in.data(), array.data(), dtype, 9);
    for (int i = 0; i < 9; ++i)
      EXPECT_EQ(load_element(array.data(), dtype, i), static_cast<double>(in[static_cast<size_t>(i)]));
    store_element(array.data(), dtype, 4, -0.75);
    convert_to_float(array.data(), dtype, out.data(), 9);
    in[4] = -0.75f;
    EXPECT_EQ(out, in);
    convert_to_float(nullptr, dtype, nullptr, 0);
    convert_from_float(nullptr, nullptr, dtype, 0);
  }
}

TEST(Half, IntegerTypesAreOurBug) {
  int32_t word = 0;
  float value = 0;
  EXPECT_THROW(load_element(&word, DType::i32, 0), Internal);
  EXPECT_THROW(store_element(&word, DType::u8, 0, 1), Internal);
  EXPECT_THROW(convert_to_float(&word, DType::i8, &value, 1), Internal);
  EXPECT_THROW(convert_from_float(&value, &word, DType::i64, 1), Internal);
}

TEST(Half, NamesOfTypes) {
  DType dtype = DType::u8;
  for (DType want : {DType::fp64, DType::fp32, DType::fp16, DType::bf16, DType::e4m3, DType::e5m2, DType::i64,
                     DType::i32, DType::i8, DType::u8}) {
    ASSERT_TRUE(parse_dtype(dtype_name(want), &dtype));
    EXPECT_EQ(dtype, want);
  }
  dtype = DType::fp16;
  for (const char* name : {"", "float32", "BF16", "bf16 ", "fp8"}) EXPECT_FALSE(parse_dtype(name, &dtype)) << name;
  EXPECT_EQ(dtype, DType::fp16);
}

}  // namespace
}  // namespace overlace::base
