// Row copies in host memory.
#pragma once

#include "overlace/tensor.h"

namespace overlace::exec {

/// A 2-D view as rows of bytes. Vectors are one row.
struct ByteRows {
  char* data = nullptr;
  size_t pitch = 0, row_bytes = 0, rows = 0;
};
/// Columns must be contiguous.
ByteRows byte_rows(const TensorView& t);
/// Same shape and dtype; no overlap.
void copy_tensor(const TensorView& from, const TensorView& to);

}  // namespace overlace::exec
