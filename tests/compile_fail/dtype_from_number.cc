// wanted: (cannot convert|invalid conversion|no known conversion).*DType
#include "overlace/tensor.h"

overlace::TensorView f(void* data) {
#ifdef FIXED
  return overlace::TensorView::contiguous(data, overlace::DType::fp32, {2, 2});
#else
  return overlace::TensorView::contiguous(data, 1, {2, 2});
#endif
}
