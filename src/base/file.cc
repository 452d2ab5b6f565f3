#include "src/base/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <system_error>

namespace overlace::base {
namespace {

Status io_error(const std::string& path, std::string_view action, int code) {
  return error(Errc::io, "cannot {} {}: {}", action, path, std::generic_category().message(code));
}

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }
  /// 0, or the error that a delayed write reports here.
  int close() {
    const int result = ::close(fd_) == 0 ? 0 : errno;
    fd_ = -1;
    return result;
  }

 private:
  int fd_;
};

/// 0 or errno.
int write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return 0;
}

int write_and_close(Descriptor& file, std::string_view bytes, bool durably) {
  int failed = write_all(file.get(), bytes);
  if (failed == 0 && durably && ::fsync(file.get()) != 0) failed = errno;
  const int closed = file.close();
  return failed != 0 ? failed : closed;
}

/// The file that a link leads to: a rename must replace that one, not the link.
std::string link_target(const std::string& path) {
  char resolved[PATH_MAX];
  return ::realpath(path.c_str(), resolved) != nullptr ? std::string(resolved) : path;
}

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, std::max<size_t>(slash, 1));
}

Status write(const std::string& path, std::string_view bytes, bool durably) {
  struct stat info {};
  const bool exists = ::stat(path.c_str(), &info) == 0;
  if (exists && !S_ISREG(info.st_mode)) {
    Descriptor file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
    if (file.get() < 0) return io_error(path, "open", errno);
    const int failed = write_and_close(file, bytes, false);
    return failed == 0 ? Status() : io_error(path, "write", failed);
  }
  static std::atomic<unsigned> serial{0};
  const std::string target = exists ? link_target(path) : path;
  const std::string temporary = format("{}.tmp.{}.{}", target, ::getpid(), serial.fetch_add(1));
  Descriptor file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (file.get() < 0) return io_error(path, "create", errno);
  int failed = write_and_close(file, bytes, durably);
  if (failed == 0 && ::rename(temporary.c_str(), target.c_str()) != 0) failed = errno;
  if (failed == 0) return durably ? sync_directory(folder_of(target)) : Status();
  ::unlink(temporary.c_str());
  return io_error(path, "write", failed);
}

}  // namespace

Result<std::string> read_file(const std::string& path) {
  Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) return io_error(path, "open", errno);
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) return io_error(path, "read", errno);
  std::string bytes;
  if (S_ISREG(info.st_mode)) bytes.reserve(static_cast<size_t>(info.st_size));
  char chunk[1 << 16];
  while (true) {
    const ssize_t n = ::read(file.get(), chunk, sizeof chunk);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return io_error(path, "read", errno);
    if (n == 0) return bytes;
    bytes.append(chunk, static_cast<size_t>(n));
  }
}

Status write_file(const std::string& path, std::string_view bytes) { return write(path, bytes, false); }

Status write_file_durably(const std::string& path, std::string_view bytes) { return write(path, bytes, true); }

Status sync_directory(const std::string& path) {
  Descriptor folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.get() < 0) return io_error(path, "open", errno);
  return ::fsync(folder.get()) == 0 ? Status() : io_error(path, "sync", errno);
}

}  // namespace overlace::base
