// An open file with two descriptors: one past the page cache, one through it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "src/base/status.h"
#include "src/io/alignment.h"

namespace overlace::io {

enum class FileMode {
  read,   // must exist
  write,  // must exist; reads too
  create  // made, or emptied; reads too
};

/// Shared by whoever has requests under way; the descriptors close with the last of them. Any thread.
class File {
 public:
  /// io with path, step and the system's reason. A file system without direct I/O, or `direct` false, gives a file
  /// whose requests all pass the page cache.
  static base::Result<std::shared_ptr<File>> open(const std::string& path, FileMode mode, bool direct = true);
  ~File();
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  const std::string& path() const { return path_; }
  /// Alignment of direct requests: at least a page for offsets, so that a page is never written both ways.
  const Alignment& alignment() const { return alignment_; }
  bool is_direct() const { return is_direct_.load(std::memory_order_relaxed); }
  int descriptor(bool direct) const { return direct ? direct_fd_ : cached_fd_; }
  /// The bytes it has now.
  base::Result<int64_t> size() const;
  /// Room on the disk for so many bytes; the file becomes as large. out of room is io with ENOSPC's text.
  base::Status allocate(int64_t bytes);
  base::Status resize(int64_t bytes);
  /// Returns when all that was written lies on the disk.
  base::Status sync();
  /// Pages of the file leave the cache, so that a measurement reads the disk. Advice: the kernel may keep some.
  base::Status drop_cached();
  /// The kernel refused a direct request that was aligned: from now on the cache is used; warned about once.
  void leave_direct(std::string_view reason);

 private:
  File(std::string path, int cached_fd) : path_(std::move(path)), cached_fd_(cached_fd) {}
  base::Status failed(const char* step) const;

  std::string path_;
  int cached_fd_, direct_fd_ = -1;
  Alignment alignment_;
  std::atomic<bool> is_direct_{false};
};

}  // namespace overlace::io
