// Arrays as .npy files: headers, and whole files mapped. C order, little-endian, versions 1 and 2.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "overlace/dtype_pod.h"
#include "src/base/mapped_file.h"
#include "src/base/status.h"

namespace overlace::base {

/// The header's dictionary: "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }".
struct NpyHeader {
  std::string descr;
  bool fortran_order = false;
  std::vector<int64_t> shape;
};
Result<NpyHeader> parse_npy_header(std::string_view text, std::string_view source);

struct NpyArray {
  DType dtype = DType::fp32;  // bf16 where the file has 16-bit words
  std::vector<int64_t> shape;
  int64_t elements = 0, data_offset = 0;
  int64_t bytes() const { return elements * static_cast<int64_t>(dtype_bytes(dtype)); }
  std::string shape_text() const;  // "(2, 3)", "(2,)"
};

/// From the first bytes of a file, at least its header. corrupt with source, offset, field, wanted and got;
/// not_supported for Fortran order, another byte order, pickled objects and types without a DType.
Result<NpyArray> parse_npy(std::string_view bytes, std::string_view source);

/// A mapped file whose size fits its header.
class NpyFile {
 public:
  static Result<NpyFile> open(const std::string& path);
  const NpyArray& array() const { return array_; }
  const std::string& path() const { return file_->path(); }
  const char* data() const { return file_->data() + array_.data_offset; }
  /// Precondition: T has the bytes of the type, and data begin at a multiple of them (else Internal).
  template <class T>
  std::span<const T> values() const {
    OVERLACE_ASSERT(sizeof(T) == dtype_bytes(array_.dtype) && is_aligned(sizeof(T)));
    return {reinterpret_cast<const T*>(data()), static_cast<size_t>(array_.elements)};
  }
  bool is_aligned(size_t bytes) const { return static_cast<size_t>(array_.data_offset) % bytes == 0; }

 private:
  std::shared_ptr<MappedFile> file_;
  NpyArray array_;
};

/// Magic, version and dictionary, padded so that data begin at a multiple of `multiple`, at most 32768.
std::string npy_header(DType dtype, const std::vector<int64_t>& shape, size_t multiple = 64);

}  // namespace overlace::base
