// Files mapped for reading.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "src/base/status.h"

namespace overlace::base {

/// How a file will be read: in_order lets the kernel bring in what lies around a page that is touched, several MiB
/// where it is set so.
enum class Reads { in_order, scattered };

/// Read-only mapping of a regular file; pages come in as they are touched.
class MappedFile {
 public:
  static Result<std::shared_ptr<MappedFile>> open(const std::string& path, Reads reads = Reads::in_order);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  const char* data() const { return data_; }
  size_t size() const { return size_; }
  const std::string& path() const { return path_; }

 private:
  MappedFile(std::string path, const char* data, size_t size) : path_(std::move(path)), data_(data), size_(size) {}
  std::string path_;
  const char* data_;
  size_t size_;
};

}  // namespace overlace::base
