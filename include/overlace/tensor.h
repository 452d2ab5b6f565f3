// A borrowed matrix or vector: its address, dtype, shape and strides. It owns nothing.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "overlace/dtype_pod.h"

namespace overlace {

#pragma GCC visibility push(default)  // exported by liboverlace.so

/// A view of memory with up to 4 dimensions; strides are in elements. The memory is that of the host on backend `cpu`,
/// else of the runtime's GPU, or managed memory.
struct TensorView {
  void* data = nullptr;
  DType dtype = DType::fp32;
  int ndim = 0;
  std::array<int64_t, 4> sizes{};
  std::array<int64_t, 4> strides{};

  int64_t dim(int i) const { return sizes[static_cast<size_t>(i)]; }
  int64_t stride(int i) const { return strides[static_cast<size_t>(i)]; }
  bool defined() const { return ndim > 0; }
  int64_t numel() const;
  /// Returns the sizes as text: "(1024, 2560)".
  std::string shape() const;

  /// Returns a row-major contiguous view of `sizes`.
  static TensorView contiguous(void* data, DType dtype, std::initializer_list<int64_t> sizes);
  /// Returns the 2-D view with its two dimensions swapped: `weight (N, K)` becomes `b (K, N)` with K contiguous.
  TensorView transposed() const;
  /// Returns rows [begin, begin + count) of a tensor of at least one dimension.
  TensorView rows(int64_t begin, int64_t count) const;
};

#pragma GCC visibility pop

}  // namespace overlace
