#include "src/base/half.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <string_view>

#include "src/base/status.h"

namespace overlace::base {
namespace {

constexpr uint32_t kSign32 = 0x80000000u;
constexpr uint32_t kInfinity32 = 0x7F800000u;
constexpr uint32_t kQuiet32 = 0x7FC00000u;
constexpr uint32_t k2To16 = 0x47800000u;

/// Nearest float of odd significand unless exact: a second rounding to 16 bits then equals one direct rounding.
float round_to_odd(double value) {
  const float nearest = static_cast<float>(value);
  const double back = static_cast<double>(nearest);
  if (back == value || std::isnan(value)) return nearest;
  uint32_t bits = std::bit_cast<uint32_t>(nearest);
  // One step towards zero where rounding went away from it; +-infinity steps to the largest finite float.
  if (std::abs(back) > std::abs(value)) --bits;
  return std::bit_cast<float>(bits | 1u);
}

/// The patterns of |value| in a format of few bits, IEEE's but for what lies above the finite numbers, and in fp32.
/// `magnitude`: without the sign.
template <int exponent_bits, int mantissa_bits>
struct Small {
  static constexpr int kBias = (1 << (exponent_bits - 1)) - 1, kDropped = 23 - mantissa_bits;
  static constexpr uint32_t kShift = (127 - kBias) << 23;  // of the exponents

  static uint32_t widen(uint32_t magnitude) {
    if (magnitude >> mantissa_bits != 0) return (magnitude << kDropped) + kShift;
    constexpr auto kUnit = std::bit_cast<float>((128u - kBias - mantissa_bits) << 23);
    return std::bit_cast<uint32_t>(static_cast<float>(magnitude) * kUnit);
  }

  /// To nearest even.
  static uint32_t narrow(uint32_t magnitude) {
    if (magnitude >= (128u - kBias) << 23)
      return (magnitude - kShift + (1u << (kDropped - 1)) - 1 + ((magnitude >> kDropped) & 1u)) >> kDropped;
    constexpr uint32_t kSum = (151u - kBias - mantissa_bits) << 23;  // the sum's last place is the subnormals' unit
    return std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + std::bit_cast<float>(kSum)) - kSum;
  }
};

[[noreturn]] void not_floating(DType dtype) {
  throw_error(Errc::internal, format("internal error: dtype {} is not a floating type of the host", dtype_name(dtype)));
}

template <class T>
T load_as(const void* data, int64_t i) {
  T value;
  std::memcpy(&value, static_cast<const char*>(data) + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

template <class T>
void store_as(void* data, int64_t i, T value) {
  std::memcpy(static_cast<char*>(data) + i * static_cast<int64_t>(sizeof(T)), &value, sizeof(T));
}

}  // namespace

float bf16_to_float(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

uint16_t float_to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & ~kSign32) > kInfinity32) return static_cast<uint16_t>((bits >> 16) | 0x40u);  // quiet, payload's top
  return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

float fp16_to_float(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t magnitude = bits & 0x7FFFu;
  const bool is_finite = magnitude < 0x7C00u;
  return std::bit_cast<float>(sign | (is_finite ? Small<5, 10>::widen(magnitude) : kInfinity32 | (magnitude << 13)));
}

uint16_t float_to_fp16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits & kSign32) >> 16;
  const uint32_t magnitude = bits & ~kSign32;
  uint32_t half;
  if (magnitude > kInfinity32) {
    half = 0x7E00u | ((magnitude >> 13) & 0x3FFu);
  } else if (magnitude >= k2To16) {
    half = 0x7C00u;
  } else {
    half = Small<5, 10>::narrow(magnitude);
  }
  return static_cast<uint16_t>(sign | half);
}

float e4m3_to_float(uint8_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x80u) << 24;
  const uint32_t magnitude = bits & 0x7Fu;
  return std::bit_cast<float>(sign | (magnitude == 0x7Fu ? kQuiet32 : Small<4, 3>::widen(magnitude)));
}

uint8_t float_to_e4m3(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits & kSign32) >> 24;
  const uint32_t magnitude = bits & ~kSign32;
  const bool is_finite = magnitude <= 0x43E80000u;  // 464, half way from 448 to the 480 that is not there
  return static_cast<uint8_t>(sign | (is_finite ? Small<4, 3>::narrow(magnitude) : 0x7Fu));
}

float e5m2_to_float(uint8_t bits) { return fp16_to_float(static_cast<uint16_t>(bits << 8)); }

uint8_t float_to_e5m2(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits & kSign32) >> 24;
  const uint32_t magnitude = bits & ~kSign32;
  uint32_t out;
  if (magnitude > kInfinity32) {
    out = 0x7Fu;
  } else if (magnitude >= k2To16) {
    out = 0x7Cu;
  } else {
    out = Small<5, 2>::narrow(magnitude);
  }
  return static_cast<uint8_t>(sign | out);
}

double load_element(const void* data, DType dtype, int64_t i) {
  switch (dtype) {
    case DType::fp64:
      return load_as<double>(data, i);
    case DType::fp32:
      return static_cast<double>(load_as<float>(data, i));
    case DType::fp16:
      return static_cast<double>(fp16_to_float(load_as<uint16_t>(data, i)));
    case DType::bf16:
      return static_cast<double>(bf16_to_float(load_as<uint16_t>(data, i)));
    case DType::e4m3:
      return static_cast<double>(e4m3_to_float(load_as<uint8_t>(data, i)));
    case DType::e5m2:
      return static_cast<double>(e5m2_to_float(load_as<uint8_t>(data, i)));
    default:
      not_floating(dtype);
  }
}

void store_element(void* data, DType dtype, int64_t i, double value) {
  switch (dtype) {
    case DType::fp64:
      return store_as(data, i, value);
    case DType::fp32:
      return store_as(data, i, static_cast<float>(value));
    case DType::fp16:
      return store_as(data, i, float_to_fp16(round_to_odd(value)));
    case DType::bf16:
      return store_as(data, i, float_to_bf16(round_to_odd(value)));
    case DType::e4m3:
      return store_as(data, i, float_to_e4m3(round_to_odd(value)));
    case DType::e5m2:
      return store_as(data, i, float_to_e5m2(round_to_odd(value)));
    default:
      not_floating(dtype);
  }
}

void convert_to_float(const void* src, DType dtype, float* dst, int64_t n) {
  switch (dtype) {
    case DType::fp64:
      for (int64_t i = 0; i < n; ++i) dst[i] = static_cast<float>(load_as<double>(src, i));
      return;
    case DType::fp32:
      if (n > 0) std::memcpy(dst, src, static_cast<size_t>(n) * sizeof(float));
      return;
    case DType::fp16:
      for (int64_t i = 0; i < n; ++i) dst[i] = fp16_to_float(load_as<uint16_t>(src, i));
      return;
    case DType::bf16:
      for (int64_t i = 0; i < n; ++i) dst[i] = bf16_to_float(load_as<uint16_t>(src, i));
      return;
    case DType::e4m3:
      for (int64_t i = 0; i < n; ++i) dst[i] = e4m3_to_float(load_as<uint8_t>(src, i));
      return;
    case DType::e5m2:
      for (int64_t i = 0; i < n; ++i) dst[i] = e5m2_to_float(load_as<uint8_t>(src, i));
      return;
    default:
      not_floating(dtype);
  }
}

void convert_from_float(const float* src, void* dst, DType dtype, int64_t n) {
  switch (dtype) {
    case DType::fp64:
      for (int64_t i = 0; i < n; ++i) store_as(dst, i, static_cast<double>(src[i]));
      return;
    case DType::fp32:
      if (n > 0) std::memcpy(dst, src, static_cast<size_t>(n) * sizeof(float));
      return;
    case DType::fp16:
      for (int64_t i = 0; i < n; ++i) store_as(dst, i, float_to_fp16(src[i]));
      return;
    case DType::bf16:
      for (int64_t i = 0; i < n; ++i) store_as(dst, i, float_to_bf16(src[i]));
      return;
    case DType::e4m3:
      for (int64_t i = 0; i < n; ++i) store_as(dst, i, float_to_e4m3(src[i]));
      return;
    case DType::e5m2:
      for (int64_t i = 0; i < n; ++i) store_as(dst, i, float_to_e5m2(src[i]));
      return;
    default:
      not_floating(dtype);
  }
}

bool parse_dtype(const char* name, DType* out) {
  for (DType t : {DType::fp64, DType::fp32, DType::fp16, DType::bf16, DType::e4m3, DType::e5m2, DType::i64, DType::i32,
                  DType::i8, DType::u8}) {
    if (std::string_view(name) == dtype_name(t)) {
      *out = t;
      return true;
    }
  }
  return false;
}

}  // namespace overlace::base
