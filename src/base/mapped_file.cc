#include "src/base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace overlace::base {
namespace {

Status map_error(const std::string& path, const char* step) {
  return error(Errc::io, "{}: {}: {}", path, step, std::strerror(errno));
}

struct OpenFile {
  int fd = -1;
  ~OpenFile() {
    if (fd >= 0) ::close(fd);
  }
};

}  // namespace

Result<std::shared_ptr<MappedFile>> MappedFile::open(const std::string& path, Reads reads) {
  OpenFile file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (file.fd < 0) return map_error(path, "open for reading");
  struct stat info {};
  if (::fstat(file.fd, &info) != 0) return map_error(path, "stat");
  if (!S_ISREG(info.st_mode)) return error(Errc::io, "{}: not a regular file, wanted one", path);
  const auto size = static_cast<size_t>(info.st_size);
  const char* data = nullptr;
  if (size > 0) {
    void* mapped = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.fd, 0);
    if (mapped == MAP_FAILED) return map_error(path, "mmap");
    data = static_cast<const char*>(mapped);
    if (reads == Reads::scattered) (void)::madvise(mapped, size, MADV_RANDOM);  // advice: the bytes are the same
  }
  return std::shared_ptr<MappedFile>(new MappedFile(path, data, size));
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<char*>(data_), size_);
}

}  // namespace overlace::base
