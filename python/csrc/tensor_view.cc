#include "python/csrc/tensor_view.h"

#include <algorithm>

namespace overlace_torch {
namespace {

bool has_rows(const Tensor& t) {
  const bool columns_touch = t.size(1) <= 1 || t.stride(1) == 1;
  return columns_touch && (t.size(0) <= 1 || t.stride(0) >= std::max<int64_t>(t.size(1), 1));
}

bool has_columns(const Tensor& t) {
  const bool rows_touch = t.size(0) <= 1 || t.stride(0) == 1;
  return rows_touch && (t.size(1) <= 1 || t.stride(1) >= std::max<int64_t>(t.size(0), 1));
}

/// On GPUs: whether a copy would give tiled loads the 16 bytes of alignment that this lacks. `outer`: the dimension
/// that is not contiguous.
bool wants_alignment(const Tensor& t, int64_t outer) {
  if (t.is_cpu() || t.numel() == 0) return false;
  const auto bytes = static_cast<int64_t>(t.element_size());
  if (t.size(1 - outer) * bytes % 16 != 0) return false;
  return reinterpret_cast<uintptr_t>(t.data_ptr()) % 16 != 0 ||
         (t.size(outer) > 1 && t.stride(outer) * bytes % 16 != 0);
}

/// Rows without gaps, in memory of its own.
Tensor copied(const Tensor& t) { return torch::stable::clone(torch::stable::contiguous(t)); }

}  // namespace

std::string name_of(ScalarType type) {
  switch (type) {
    case ScalarType::Bool:
      return "bool";
    case ScalarType::Byte:
      return "uint8";
    case ScalarType::Char:
      return "int8";
    case ScalarType::Short:
      return "int16";
    case ScalarType::Int:
      return "int32";
    case ScalarType::Long:
      return "int64";
    case ScalarType::Half:
      return "float16";
    case ScalarType::BFloat16:
      return "bfloat16";
    case ScalarType::Float:
      return "float32";
    case ScalarType::Double:
      return "float64";
    default:
      return c10::toString(type);
  }
}

int dtype_of(const Argument& argument, ScalarType type) {
  switch (type) {
    case ScalarType::Double:
      return OVL_FP64;
    case ScalarType::Float:
      return OVL_FP32;
    case ScalarType::Half:
      return OVL_FP16;
    case ScalarType::BFloat16:
      return OVL_BF16;
    default:
      refuse(argument.of_op() + " is " + name_of(type) +
             ", which cannot be multiplied, wanted float32, bfloat16, float16, or float64 on CPUs");
  }
}

Tensor new_matrix(const Tensor& like, int64_t rows, int64_t columns, ScalarType dtype) {
  const std::array<int64_t, 2> sizes{rows, columns}, strides{std::max<int64_t>(columns, 1), 1};
  int32_t device = 0, index = 0;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(like.get(), &device));
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_index(like.get(), &index));
  // NOTE: not aten::new_empty, which the dispatcher takes 2 us for.
  AtenTensorHandle made = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(
      2, sizes.data(), strides.data(), torch::stable::detail::to<int32_t>(torch::stable::detail::from(dtype)), device,
      index, &made));
  return Tensor(made);
}

Tensor with_contiguous_rows(const Tensor& t) {
  if (!has_rows(t)) return torch::stable::contiguous(t);
  return wants_alignment(t, 0) ? copied(t) : t;
}

Tensor with_either_contiguous(const Tensor& t) {
  if (has_rows(t)) return wants_alignment(t, 0) ? copied(t) : t;
  if (!has_columns(t)) return torch::stable::contiguous(t);
  return wants_alignment(t, 1) ? torch::stable::transpose(copied(torch::stable::transpose(t, 0, 1)), 0, 1) : t;
}

namespace {

/// A matrix whose elements are of `dtype`.
ovl_tensor matrix_of(const Tensor& t, int dtype) {
  ovl_tensor view{};
  view.data = t.data_ptr();
  view.dtype = dtype;
  view.ndim = 2;
  for (int i = 0; i < 2; ++i) view.sizes[i] = t.size(i), view.strides[i] = t.stride(i);
  if (has_rows(t)) {
    if (t.size(1) <= 1) view.strides[1] = 1;
    if (t.size(0) <= 1) view.strides[0] = std::max<int64_t>(t.size(1), 1);
  } else {
    if (t.size(0) <= 1) view.strides[0] = 1;
    if (t.size(1) <= 1) view.strides[1] = std::max<int64_t>(t.size(0), 1);
  }
  return view;
}

}  // namespace

ovl_tensor view_of(const Argument& argument, const Tensor& t) {
  return matrix_of(t, dtype_of(argument, t.scalar_type()));
}

ovl_tensor fp8_view_of(const Tensor& t) {
  return matrix_of(t, t.scalar_type() == ScalarType::Float8_e5m2 ? OVL_E5M2 : OVL_E4M3);
}

ovl_tensor vector_of(const Argument& argument, const Tensor& t) {
  return t.numel() == 0 ? ovl_tensor{} : given_vector_of(argument, t);
}

ovl_tensor given_vector_of(const Argument& argument, const Tensor& t) {
  ovl_tensor view{};
  view.data = t.data_ptr();
  view.dtype = dtype_of(argument, t.scalar_type());
  view.ndim = 1;
  view.sizes[0] = t.size(0);
  view.strides[0] = t.size(0) <= 1 ? 1 : t.stride(0);
  return view;
}

}  // namespace overlace_torch
