#include "overlace/tensor.h"

#include "src/base/status.h"

namespace overlace {

int64_t TensorView::numel() const {
  if (ndim == 0) return 0;
  int64_t n = 1;
  for (int i = 0; i < ndim; ++i) n *= dim(i);
  return n;
}

std::string TensorView::shape() const {
  std::string text = "(";
  for (int i = 0; i < ndim; ++i) text += base::format(i == 0 ? "{}" : ", {}", dim(i));
  return text + ")";
}

TensorView TensorView::contiguous(void* data, DType dtype, std::initializer_list<int64_t> sizes) {
  TensorView view;
  if (sizes.size() > view.sizes.size())
    base::invalid_argument("tensor: {} dimensions, wanted at most {}", sizes.size(), view.sizes.size()).or_throw();
  view.data = data;
  view.dtype = dtype;
  view.ndim = static_cast<int>(sizes.size());
  size_t i = 0;
  for (int64_t size : sizes) {
    if (size < 0) base::invalid_argument("tensor: dimension {} is {}, wanted >= 0", i, size).or_throw();
    view.sizes[i++] = size;
  }
  int64_t stride = 1;
  for (size_t d = sizes.size(); d-- > 0;) {
    view.strides[d] = stride;
    stride *= view.sizes[d];
  }
  return view;
}

TensorView TensorView::transposed() const {
  if (ndim != 2) base::invalid_argument("transposed: tensor {} has {} dimensions, wanted 2", shape(), ndim).or_throw();
  TensorView view = *this;
  std::swap(view.sizes[0], view.sizes[1]);
  std::swap(view.strides[0], view.strides[1]);
  return view;
}

TensorView TensorView::rows(int64_t begin, int64_t count) const {
  if (ndim < 1 || begin < 0 || count < 0 || begin > dim(0) - count)
    base::invalid_argument("rows [{}, {} + {}) of a tensor {}, wanted rows within [0, {})", begin, begin, count,
                           shape(), ndim < 1 ? 0 : dim(0))
        .or_throw();
  TensorView view = *this;
  view.sizes[0] = count;
  if (data != nullptr)
    view.data = static_cast<char*>(data) + begin * stride(0) * static_cast<int64_t>(dtype_bytes(dtype));
  return view;
}

}  // namespace overlace
