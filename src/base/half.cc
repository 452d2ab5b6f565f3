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
  const uint32_t exponent = (bits >> 10) & 0x1Fu;
  const uint32_t mantissa = bits & 0x3FFu;
  uint32_t magnitude;
  if (exponent == 0) {
    magnitude = std::bit_cast<uint32_t>(static_cast<float>(mantissa) * 0x1p-24f);
  } else if (exponent == 31) {
    magnitude = kInfinity32 | (mantissa << 13);
  } else {
    magnitude = ((exponent + 112u) << 23) | (mantissa << 13);
  }
  return std::bit_cast<float>(sign | magnitude);
}

uint16_t float_to_fp16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits & kSign32) >> 16;
  const uint32_t magnitude = bits & ~kSign32;
  uint32_t half;
  if (magnitude > kInfinity32) {
    half = 0x7E00u | ((magnitude >> 13) & 0x3FFu);
  } else if (magnitude >= 0x47800000u) {  // >= 2^16
    half = 0x7C00u;
  } else if (magnitude < 0x38800000u) {  // < 2^-14: the sum's last place is 2^-24, the subnormals' unit
    half = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - std::bit_cast<uint32_t>(0.5f);
  } else {
    half = (magnitude + 0xFFFu + ((magnitude >> 13) & 1u) - (112u << 23)) >> 13;
  }
  return static_cast<uint16_t>(sign | half);
}

float e4m3_to_float(uint8_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x80u) << 24;
  const uint32_t magnitude = bits & 0x7Fu;
  uint32_t out;
  if (magnitude == 0x7Fu) {
    out = kInfinity32 | 0x400000u;  // quiet
  } else if (magnitude < 8) {
    out = std::bit_cast<uint32_t>(static_cast<float>(magnitude) * 0x1p-9f);
  } else {
    out = (magnitude << 20) + (120u << 23);
  }
  return std::bit_cast<float>(sign | out);
}

uint8_t float_to_e4m3(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits & kSign32) >> 24;
  const uint32_t magnitude = bits & ~kSign32;
  uint32_t out;
  if (magnitude > 0x43E80000u) {  // > 464, half way from 448 to the 480 that is not there
    out = 0x7Fu;
  } else if (magnitude < 0x3C800000u) {  // < 2^-6: the sum's last place is 2^-9, the subnormals' unit
    out = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0x1p14f) - std::bit_cast<uint32_t>(0x1p14f);
  } else {
    out = (magnitude + 0x7FFFFu + ((magnitude >> 20) & 1u) - (120u << 23)) >> 20;
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
