// Element types, with the spelling that JSON, the command line and file formats share.
#pragma once

#include <cstddef>
#include <cstdint>

namespace overlace {

enum class DType : int32_t { fp64, fp32, fp16, bf16, e4m3, e5m2, i64, i32, i8, u8 };

/// Returns the bytes of one element.
constexpr size_t dtype_bytes(DType t) {
  switch (t) {
    case DType::fp64:
    case DType::i64:
      return 8;
    case DType::fp32:
    case DType::i32:
      return 4;
    case DType::fp16:
    case DType::bf16:
      return 2;
    default:
      return 1;
  }
}

/// Returns whether a type is a float of 8 bits, whose products have scales.
constexpr bool is_fp8(DType t) { return t == DType::e4m3 || t == DType::e5m2; }

/// Returns the name of a type, such as "bf16".
constexpr const char* dtype_name(DType t) {
  switch (t) {
    case DType::fp64:
      return "fp64";
    case DType::fp32:
      return "fp32";
    case DType::fp16:
      return "fp16";
    case DType::bf16:
      return "bf16";
    case DType::e4m3:
      return "e4m3";
    case DType::e5m2:
      return "e5m2";
    case DType::i64:
      return "i64";
    case DType::i32:
      return "i32";
    case DType::i8:
      return "i8";
    case DType::u8:
      return "u8";
  }
  return "?";
}

}  // namespace overlace
