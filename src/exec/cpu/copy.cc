#include "src/exec/cpu/copy.h"

#include <algorithm>
#include <cstring>

#include "src/base/status.h"

namespace overlace::exec {

ByteRows byte_rows(const TensorView& t) {
  OVERLACE_ASSERT(t.ndim == 1 || t.ndim == 2);
  const size_t element = dtype_bytes(t.dtype);
  const int columns = t.ndim - 1;
  OVERLACE_ASSERT(t.dim(columns) <= 1 || t.stride(columns) == 1);
  ByteRows r;
  r.data = static_cast<char*>(t.data);
  r.row_bytes = static_cast<size_t>(t.dim(columns)) * element;
  r.rows = t.ndim == 2 ? static_cast<size_t>(t.dim(0)) : 1;
  r.pitch = t.ndim == 2 && r.rows > 1 ? static_cast<size_t>(t.stride(0)) * element : r.row_bytes;
  return r;
}

void copy_tensor(const TensorView& from, const TensorView& to) {
  if (from.numel() == 0) return;
  const ByteRows src = byte_rows(from), dst = byte_rows(to);
  OVERLACE_ASSERT(src.rows == dst.rows && src.row_bytes == dst.row_bytes);
  if (src.pitch == src.row_bytes && dst.pitch == dst.row_bytes) {
    std::memcpy(dst.data, src.data, src.rows * src.row_bytes);
    return;
  }
  for (size_t i = 0; i < src.rows; ++i) {
    std::memcpy(dst.data + i * dst.pitch, src.data + i * src.pitch, src.row_bytes);
  }
}

}  // namespace overlace::exec
