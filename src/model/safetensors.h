// Tensors of safetensors files, one file or sharded with an index; memory-mapped, so a rank touches what it reads.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "overlace/dtype_pod.h"
#include "src/base/mapped_file.h"
#include "src/base/status.h"

namespace overlace::model {

struct StoredTensor {
  std::string name;
  std::string dtype;  // as written: "BF16"
  std::vector<int64_t> shape;
  uint64_t begin = 0, end = 0;  // bytes in the file
  std::string shape_text() const;
};

/// One file. Its header is checked whole before anything is used: offsets in order, inside the file, without overlap
/// or hole, of the size that shape and dtype ask for.
class SafetensorsFile {
 public:
  static base::Result<SafetensorsFile> open(const std::string& path);
  const StoredTensor* find(std::string_view name) const;
  const std::string& path() const { return file_->path(); }
  const char* bytes(const StoredTensor& tensor) const { return file_->data() + tensor.begin; }
  size_t count() const { return tensors_.size(); }

 private:
  std::shared_ptr<base::MappedFile> file_;
  std::map<std::string, StoredTensor, std::less<>> tensors_;
};

/// A box of a stored 2-D (or, as one row, 1-D) tensor.
struct StoredBox {
  int64_t row = 0, rows = 0, col = 0, cols = 0;
  bool transposed = false;  // out is (cols, rows)
};

/// Bytes of a file.
struct StoredRange {
  std::string path;
  int64_t offset = 0, bytes = 0;
};

/// A directory: model.safetensors.index.json with its files, or model.safetensors. Not thread-safe.
class Checkpoint {
 public:
  static base::Result<Checkpoint> open(const std::string& directory);
  bool has(std::string_view name) const;
  /// Box of `name`, which must have `shape`, rounded once to `dtype` into `out` (contiguous). corrupt with file,
  /// tensor, wanted and got; a value that is not finite in `dtype` is named with its place.
  /// `range`: the bytes of range(name, shape, box), which are used instead of the mapped file; may be null.
  base::Status read(std::string_view name, const std::vector<int64_t>& shape, const StoredBox& box, DType dtype,
                    void* out, const void* range = nullptr);
  /// From the first byte of the box to its last; between its rows there may be others.
  base::Result<StoredRange> range(std::string_view name, const std::vector<int64_t>& shape, const StoredBox& box);

 private:
  base::Result<const SafetensorsFile*> file_of(std::string_view name);
  struct Found {
    const SafetensorsFile* file = nullptr;
    const StoredTensor* tensor = nullptr;
    DType dtype = DType::fp32;
  };
  base::Result<Found> find(std::string_view name, const std::vector<int64_t>& shape);
  std::string directory_, source_;                            // source_: index or file, for messages
  std::map<std::string, std::string, std::less<>> files_;     // tensor -> file name, from the index
  std::map<std::string, SafetensorsFile, std::less<>> open_;  // by file name
};

}  // namespace overlace::model
