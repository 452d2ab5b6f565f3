// torch's tensors as the matrices of the C API, through torch's stable ABI.
#pragma once

#include <torch/csrc/stable/c/shim.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <array>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "overlace/capi.h"

namespace overlace_torch {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

/// Python makes the class of overlace.errors of what stands in brackets.
struct Failure : std::runtime_error {
  Failure(int c, const std::string& text)
      : std::runtime_error(std::string("[") + ovl_error_name(c) + "] " + text), code(c) {}
  int code;
};
[[noreturn]] inline void fail(int code, const std::string& text) { throw Failure(code, text); }
[[noreturn]] inline void refuse(const std::string& text) { fail(OVL_INVALID_ARGUMENT, text); }
/// After a call of the C API.
inline void check(int code) {
  if (code != OVL_OK) fail(code, ovl_error_text());
}

inline std::string shape_of(const Tensor& t) {
  std::string text = "[";
  for (int64_t i = 0; i < t.dim(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(t.size(i));
  return text + "]";
}

/// A string argument of an operator, which ends with this. Operators take handles: where they take std::string, torch
/// 2.11 loses the memory of each of them at each call.
class Text {
 public:
  explicit Text(StringHandle handle) : handle_(handle) {
    const char* data = nullptr;
    size_t length = 0;
    TORCH_ERROR_CODE_CHECK(torch_string_c_str(handle, &data));
    TORCH_ERROR_CODE_CHECK(torch_string_length(handle, &length));
    view_ = {data, length};
  }
  Text(const Text&) = delete;
  Text& operator=(const Text&) = delete;
  ~Text() { (void)torch_delete_string(handle_); }
  std::string_view view() const { return view_; }
  const char* c_str() const { return view_.data(); }

 private:
  StringHandle handle_;
  std::string_view view_;
};

/// What an argument is called in messages: "ag_gemm", "bs", and which of a list; -1: it is none.
struct Argument {
  std::string_view op, name;
  int64_t index = -1;

  /// "bs[0]"
  std::string text() const { return std::string(name) + (index < 0 ? "" : "[" + std::to_string(index) + "]"); }
  /// How messages about it begin: "ag_gemm: bs[0]".
  std::string of_op() const { return std::string(op) + ": " + text(); }
};

/// The name of a type as torch.dtype spells it: "int8".
std::string name_of(ScalarType type);
int dtype_of(const Argument& argument, ScalarType type);
/// What is multiplied with scales.
inline bool is_fp8(ScalarType type) { return type == ScalarType::Float8_e4m3fn || type == ScalarType::Float8_e5m2; }
/// Row-major, uninitialised, on the device of `like`.
Tensor new_matrix(const Tensor& like, int64_t rows, int64_t columns, ScalarType dtype);

/// A matrix with contiguous rows, copied where it has others; on GPUs also where tiles could not be loaded from it.
Tensor with_contiguous_rows(const Tensor& t);
/// The matrix b in the same way, where either dimension is contiguous.
Tensor with_either_contiguous(const Tensor& t);
/// Dimensions of one element get the strides of a matrix without gaps; torch leaves any there.
ovl_tensor view_of(const Argument& argument, const Tensor& t);
/// Likewise of is_fp8.
ovl_tensor fp8_view_of(const Tensor& t);
/// A vector; not there without elements.
ovl_tensor vector_of(const Argument& argument, const Tensor& t);
/// A vector that may have no elements.
ovl_tensor given_vector_of(const Argument& argument, const Tensor& t);

}  // namespace overlace_torch
