#include "src/model/npy.h"

#include <cmath>

#include "src/base/file.h"
#include "src/base/half.h"
#include "src/base/npy.h"

namespace overlace::model {

using base::error;

base::Result<NpyMatrix> read_npy(const std::string& path) {
  const auto file = base::NpyFile::open(path);
  if (!file.ok()) return file.status();
  const base::NpyArray& array = file->array();
  if (array.dtype != DType::fp32 && array.dtype != DType::fp16 && array.dtype != DType::fp64)
    return error(Errc::not_supported, "{}: dtype {}, wanted fp32, fp16 or fp64", path, dtype_name(array.dtype));
  if (array.shape.size() != 2)
    return error(Errc::invalid_argument, "{}: {} dimensions, wanted 2 (tokens, hidden)", path, array.shape.size());
  NpyMatrix matrix{array.shape[0], array.shape[1], {}};
  matrix.values.resize(static_cast<size_t>(array.elements));
  base::convert_to_float(file->data(), array.dtype, matrix.values.data(), array.elements);
  for (size_t i = 0; i < matrix.values.size(); ++i)
    if (!std::isfinite(matrix.values[i]))
      return error(Errc::corrupt, "{}: element ({}, {}) is {}, wanted a finite number", path,
                   i / static_cast<size_t>(matrix.cols), i % static_cast<size_t>(matrix.cols), matrix.values[i]);
  return matrix;
}

base::Status write_npy(const std::string& path, int64_t rows, int64_t cols, const float* values) {
  std::string bytes = base::npy_header(DType::fp32, {rows, cols});
  bytes.append(reinterpret_cast<const char*>(values), static_cast<size_t>(rows * cols) * sizeof(float));
  return base::write_file(path, bytes);
}

}  // namespace overlace::model
