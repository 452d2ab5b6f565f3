#include "src/runtime/engine/accumulator.h"

#include <cstring>

#include "src/base/half.h"

namespace overlace::runtime {
namespace {

bool is_small_float(DType dtype) { return dtype == DType::fp32 || dtype == DType::fp16 || dtype == DType::bf16; }

template <class From, class To>
void add_all(std::vector<To>& sums, const void* values, size_t count, bool is_first) {
  const char* next = static_cast<const char*>(values);
  for (size_t i = 0; i < count; ++i) {
    From value;  // the source may be unaligned
    std::memcpy(&value, next + i * sizeof value, sizeof value);
    sums[i] = is_first ? static_cast<To>(value) : static_cast<To>(sums[i] + static_cast<To>(value));
  }
}

template <class To, class From>
void store_all(const std::vector<From>& sums, void* values, size_t count) {
  char* next = static_cast<char*>(values);
  for (size_t i = 0; i < count; ++i) {
    const To value = static_cast<To>(sums[i]);
    std::memcpy(next + i * sizeof value, &value, sizeof value);
  }
}

}  // namespace

bool can_sum(DType dtype) {
  return is_small_float(dtype) || dtype == DType::fp64 || dtype == DType::i64 || dtype == DType::i32;
}

Accumulator::Accumulator(DType dtype, size_t max_count) : dtype_(dtype) {
  if (is_small_float(dtype)) {
    floats_.resize(max_count);
    converted_.resize(max_count);
  } else if (dtype == DType::fp64) {
    doubles_.resize(max_count);
  } else {
    words_.resize(max_count);
  }
}

void Accumulator::add(const void* values, size_t count) {
  if (is_small_float(dtype_)) {
    std::vector<float>& target = is_empty_ ? floats_ : converted_;
    base::convert_to_float(values, dtype_, target.data(), static_cast<int64_t>(count));
    if (!is_empty_)
      for (size_t i = 0; i < count; ++i) floats_[i] += converted_[i];
  } else if (dtype_ == DType::fp64) {
    add_all<double>(doubles_, values, count, is_empty_);
  } else if (dtype_ == DType::i64) {
    add_all<int64_t>(words_, values, count, is_empty_);
  } else {
    add_all<int32_t>(words_, values, count, is_empty_);
  }
  is_empty_ = false;
}

void Accumulator::store(void* values, size_t count) const {
  if (is_small_float(dtype_))
    base::convert_from_float(floats_.data(), values, dtype_, static_cast<int64_t>(count));
  else if (dtype_ == DType::fp64)
    store_all<double>(doubles_, values, count);
  else if (dtype_ == DType::i64)
    store_all<int64_t>(words_, values, count);
  else
    store_all<int32_t>(words_, values, count);
}

}  // namespace overlace::runtime
