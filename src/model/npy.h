// Hidden states as .npy files: 2-D, '<f4', '<f2' or '<f8'.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/base/status.h"

namespace overlace::model {

struct NpyMatrix {
  int64_t rows = 0, cols = 0;
  std::vector<float> values;  // rows x cols
};

/// io or corrupt with file, offset, field, wanted and got; not_supported for other dtypes and Fortran order. Every
/// element must be finite.
base::Result<NpyMatrix> read_npy(const std::string& path);
/// '<f4'; whole file or none.
base::Status write_npy(const std::string& path, int64_t rows, int64_t cols, const float* values);

}  // namespace overlace::model
