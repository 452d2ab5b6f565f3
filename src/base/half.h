// Host conversions of floats of 16 and 8 bits, round to nearest even.
#pragma once

#include <cstdint>

#include "overlace/dtype_pod.h"

namespace overlace::base {

float bf16_to_float(uint16_t bits);
uint16_t float_to_bf16(float value);
float fp16_to_float(uint16_t bits);
uint16_t float_to_fp16(float value);

/// fp8 of 4 bits of exponent and 3 of mantissa (arXiv 2209.05433): no infinity, 448 is the largest, and what rounds to
/// more is NaN, as torch has it.
float e4m3_to_float(uint8_t bits);
uint8_t float_to_e4m3(float value);

/// fp8 of 5 bits of exponent and 2 of mantissa, the upper byte of an fp16: 57344 is the largest, and what rounds to
/// more is infinite, as torch has it.
float e5m2_to_float(uint8_t bits);
uint8_t float_to_e5m2(float value);

/// Element i of an array of floating dtype (fp64 fp32 fp16 bf16 e4m3 e5m2) as double, and back with one rounding.
double load_element(const void* data, DType dtype, int64_t i);
void store_element(void* data, DType dtype, int64_t i, double value);
/// Bulk conversions of contiguous arrays.
void convert_to_float(const void* src, DType dtype, float* dst, int64_t n);
void convert_from_float(const float* src, void* dst, DType dtype, int64_t n);

/// "bf16" -> DType; false if unknown.
bool parse_dtype(const char* name, DType* out);

}  // namespace overlace::base
