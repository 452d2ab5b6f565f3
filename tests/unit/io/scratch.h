// A folder of its own for each test, gone with it. Its name is not one of the library: tests of the command line that
// run beside this one look in /dev/shm for what ranks leave there.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace overlace::io {

class Scratch {
 public:
  explicit Scratch(const std::string& root = std::filesystem::temp_directory_path().string()) {
    std::string path = root + "/io_scratch_XXXXXX";
    if (::mkdtemp(path.data()) != nullptr) path_ = path;
  }
  ~Scratch() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  bool is_there() const { return !path_.empty(); }
  std::string path(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

/// The byte that belongs at an offset: differs between pages, and inside of them.
inline std::byte byte_at(int64_t offset) {
  uint64_t x = static_cast<uint64_t>(offset) / 8 * 0x9E3779B97F4A7C15ull + 0x1234567;
  x ^= x >> 31;
  return static_cast<std::byte>(x >> (offset % 8 * 8));
}

inline std::vector<std::byte> pattern(int64_t offset, int64_t bytes) {
  std::vector<std::byte> out(static_cast<size_t>(bytes));
  for (int64_t i = 0; i < bytes; ++i) out[static_cast<size_t>(i)] = byte_at(offset + i);
  return out;
}

inline void write_pattern(const std::string& path, int64_t bytes) {
  const std::vector<std::byte> data = pattern(0, bytes);
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(data.data()), static_cast<std::streamsize>(bytes));
}

}  // namespace overlace::io
