// Hidden states as .npy files: 2-D, C order, '<f4', '<f2' or '<f8'.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/status.h"

namespace overlace::model {

struct NpyMatrix {
  int64_t rows = 0, cols = 0;
  std::vector<float> values;  // rows x cols
};

/// Versions 1 and 2. io or corrupt with file, offset, field, wanted and got; not_supported for other dtypes and Fortran
/// order. Every element must be finite.
base::Result<NpyMatrix> read_npy(const std::string& path);
/// '<f4'; whole file or none.
base::Status write_npy(const std::string& path, int64_t rows, int64_t cols, const float* values);

/// The header's dictionary, for tests and read_npy: "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }".
struct NpyHeader {
  std::string descr;
  bool fortran_order = false;
  std::vector<int64_t> shape;
};
base::Result<NpyHeader> parse_npy_header(std::string_view text, std::string_view source);

}  // namespace overlace::model
