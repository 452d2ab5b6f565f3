// Sums of one chunk over ranks: taken in the order of the calls, in fp32 for 16-bit floats, rounded once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "overlace/dtype_pod.h"

namespace overlace::runtime {

/// fp64, fp32, fp16, bf16, i64, i32.
bool can_sum(DType dtype);

class Accumulator {
 public:
  Accumulator(DType dtype, size_t max_count);
  void clear() { is_empty_ = true; }
  void add(const void* values, size_t count);
  void store(void* values, size_t count) const;

 private:
  const DType dtype_;
  bool is_empty_ = true;
  // One of these is in use.
  std::vector<float> floats_, converted_;
  std::vector<double> doubles_;
  std::vector<uint64_t> words_;  // integers wrap
};

}  // namespace overlace::runtime
