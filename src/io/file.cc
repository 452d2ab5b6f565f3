#include "src/io/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "src/base/log.h"

namespace overlace::io {

base::Status File::failed(const char* step) const {
  return base::error(Errc::io, "{}: {}: {}", path_, step, std::generic_category().message(errno));
}

base::Result<std::shared_ptr<File>> File::open(const std::string& path, FileMode mode, bool direct) {
  const int access = mode == FileMode::read ? O_RDONLY : O_RDWR;
  const int extra = mode == FileMode::create ? O_CREAT | O_TRUNC : 0;
  std::shared_ptr<File> file(new File(path, ::open(path.c_str(), access | extra | O_CLOEXEC, 0666)));
  if (file->cached_fd_ < 0) return file->failed(mode == FileMode::read ? "open for reading" : "open for writing");
  struct stat info {};
  if (::fstat(file->cached_fd_, &info) != 0) return file->failed("stat");
  if (!S_ISREG(info.st_mode)) return base::error(Errc::io, "{}: not a regular file, wanted one", path);
  if (!direct) return file;
  file->direct_fd_ = ::open(path.c_str(), access | O_DIRECT | O_CLOEXEC);
  if (file->direct_fd_ < 0) {
    if (errno != EINVAL) return file->failed("open for direct I/O");
    file->leave_direct(std::generic_category().message(EINVAL));
    return file;
  }
  const base::Result<Alignment> alignment = direct_alignment(file->direct_fd_);
  if (!alignment.ok()) {
    if (alignment.status().code() != Errc::not_supported) return alignment.status();
    file->leave_direct(alignment.status().message());
    return file;
  }
  file->alignment_ = {alignment->memory_bytes, std::max(alignment->offset_bytes, kPageBytes)};
  file->is_direct_ = true;
  return file;
}

File::~File() {
  for (const int fd : {cached_fd_, direct_fd_})
    if (fd >= 0) ::close(fd);
}

base::Result<int64_t> File::size() const {
  struct stat info {};
  if (::fstat(cached_fd_, &info) != 0) return failed("stat");
  return static_cast<int64_t>(info.st_size);
}

base::Status File::allocate(int64_t bytes) {
  if (bytes <= 0) return resize(0);
  int code = 0;
  do code = ::posix_fallocate(cached_fd_, 0, bytes);
  while (code == EINTR);
  if (code == 0) return resize(bytes);
  errno = code;
  return failed("allocate");
}

base::Status File::resize(int64_t bytes) {
  return ::ftruncate(cached_fd_, bytes) == 0 ? base::Status() : failed("resize");
}

base::Status File::sync() { return ::fsync(cached_fd_) == 0 ? base::Status() : failed("sync"); }

base::Status File::drop_cached() {
  OVERLACE_TRY(sync());
  errno = ::posix_fadvise(cached_fd_, 0, 0, POSIX_FADV_DONTNEED);
  return errno == 0 ? base::Status() : failed("drop cached pages");
}

void File::leave_direct(std::string_view reason) {
  is_direct_ = false;
  const size_t slash = path_.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path_.substr(0, std::max<size_t>(slash, 1));
  base::warn_once("io", base::format("no direct I/O in {} ({}); requests pass the page cache", folder, reason));
}

}  // namespace overlace::io
