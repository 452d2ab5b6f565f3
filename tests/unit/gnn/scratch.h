// A folder of its own for each test, and arrays in it.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "src/base/file.h"
#include "src/base/npy.h"

namespace overlace::gnn {

class Scratch {
 public:
  Scratch() {
    std::string path = (std::filesystem::temp_directory_path() / "overlace_gnn_XXXXXX").string();
    if (::mkdtemp(path.data()) != nullptr) path_ = path;
    EXPECT_FALSE(path_.empty());
  }
  ~Scratch() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  const std::string& path() const { return path_; }
  std::string path(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

template <class T>
void write_array(const std::string& path, DType dtype, const std::vector<int64_t>& shape,
                 const std::vector<T>& values) {
  std::string bytes = base::npy_header(dtype, shape);
  bytes.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
  const base::Status written = base::write_file(path, bytes);
  EXPECT_TRUE(written.ok()) << written.message();
}

}  // namespace overlace::gnn
