// torch's tensors as the matrices of the C API, through torch's stable ABI.
#pragma once

#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <array>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "overlace/capi.h"

namespace overlace_torch {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

/// Python makes the class of overlace.errors of what stands in brackets.
[[noreturn]] inline void fail(int code, const std::string& text) {
  throw std::runtime_error(std::string("[") + ovl_error_name(code) + "] " + text);
}
[[noreturn]] inline void refuse(const std::string& text) { fail(OVL_INVALID_ARGUMENT, text); }
/// After a call of the C API.
inline void check(int code) {
  if (code != OVL_OK) fail(code, ovl_error_text());
}

/// A struct of the C API that says how large it is.
template <class T>
T sized() {
  T value{};
  value.struct_size = sizeof(T);
  return value;
}

inline std::string shape_of(const Tensor& t) {
  std::string text = "[";
  for (int64_t i = 0; i < t.dim(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(t.size(i));
  return text + "]";
}

/// What an argument is called in messages: "ag_gemm", "bs[0]".
struct Argument {
  std::string op, name;
};

int dtype_of(const Argument& argument, ScalarType type);
/// Row-major, uninitialised, on the device of `like`.
Tensor new_matrix(const Tensor& like, int64_t rows, int64_t columns, ScalarType dtype);

/// A matrix with contiguous rows, copied where it has others; on GPUs also where tiles could not be loaded from it.
Tensor with_contiguous_rows(const Tensor& t);
/// The same of b: either dimension is contiguous.
Tensor with_either_contiguous(const Tensor& t);
/// Dimensions of one element get the strides of a matrix without gaps; torch leaves any there.
ovl_tensor view_of(const Argument& argument, const Tensor& t);
/// A vector; not there without elements.
ovl_tensor vector_of(const Argument& argument, const Tensor& t);
/// Which layout the view of `b` has: where both fit, that of its rows.
int layout_of(const ovl_tensor& b);

}  // namespace overlace_torch
