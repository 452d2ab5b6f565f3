// Every call by which this program changes a file, counted, and at a chosen one the process dies or the disk is full.
// The functions of the system are defined here, in front of the C library's, so one source file may include it.
#pragma once

#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <mutex>
#include <string>
#include <vector>

namespace overlace::gnn::test {

enum class Step { open, write, allocate, resize, sync, rename };

struct Call {
  Step step;
  std::string path;  // of the file, of the folder that is synced, of the new name
};

/// What happens at the call number `at`, the first is 1; 0: never.
enum class Fate {
  die,   // before it
  tear,  // behind half of what it writes
  full,  // it and all later ones that need room fail with ENOSPC
};

struct SystemCalls {
  std::mutex mutex;
  bool is_on = false;
  int64_t count = 0, at = 0;
  Fate fate = Fate::die;
  bool keeps_log = false;
  std::vector<Call> log;
};
inline SystemCalls system_calls;

inline std::string path_of(int fd) {
  char path[PATH_MAX];
  const ssize_t n = ::readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), path, sizeof path);
  return n < 0 ? "" : std::string(path, static_cast<size_t>(n));
}

/// Whether a step fails on a full disk.
inline bool needs_room(Step step) { return step != Step::sync; }

/// Errno that the call ends with, 0: it goes on; *half: writes half of it, then dies.
inline int begin_call(Step step, const std::string& path, bool* half) {
  SystemCalls& s = system_calls;
  const std::lock_guard lock(s.mutex);
  if (!s.is_on) return 0;
  ++s.count;
  if (s.keeps_log) s.log.push_back({step, path});
  if (s.at == 0 || s.count < s.at) return 0;
  if (s.fate == Fate::full) return needs_room(step) ? ENOSPC : 0;
  if (s.count > s.at) return 0;
  *half = s.fate == Fate::tear && step == Step::write;
  if (!*half) ::kill(::getpid(), SIGKILL);
  return 0;
}

/// Counts what `body` does, or does to it what `fate` says.
template <class Body>
int64_t with_system_calls(int64_t at, Fate fate, bool keeps_log, Body body) {
  SystemCalls& s = system_calls;
  {
    const std::lock_guard lock(s.mutex);
    s.count = 0;
    s.at = at;
    s.fate = fate;
    s.keeps_log = keeps_log;
    s.log.clear();
    s.is_on = true;
  }
  body();
  const std::lock_guard lock(s.mutex);
  s.is_on = false;
  return s.count;
}

template <class Call>
long changed(Step step, const std::string& path, size_t bytes, Call call) {
  bool half = false;
  if (const int code = begin_call(step, path, &half); code != 0) {
    errno = code;
    return -1;
  }
  if (!half) return call(bytes);
  call(bytes / 2);
  ::kill(::getpid(), SIGKILL);
  return -1;
}

}  // namespace overlace::gnn::test

extern "C" {

ssize_t pwrite(int fd, const void* data, size_t bytes, off_t offset) {
  using namespace overlace::gnn::test;  // NOLINT(google-build-using-namespace)
  return changed(Step::write, path_of(fd), bytes,
                 [&](size_t n) { return ::syscall(SYS_pwrite64, fd, data, n, offset); });
}
ssize_t write(int fd, const void* data, size_t bytes) {
  using namespace overlace::gnn::test;  // NOLINT(google-build-using-namespace)
  return changed(Step::write, path_of(fd), bytes, [&](size_t n) { return ::syscall(SYS_write, fd, data, n); });
}
int ftruncate(int fd, off_t size) noexcept {
  using namespace overlace::gnn::test;  // NOLINT(google-build-using-namespace)
  return static_cast<int>(
      changed(Step::resize, path_of(fd), 0, [&](size_t) { return ::syscall(SYS_ftruncate, fd, size); }));
}
int posix_fallocate(int fd, off_t offset, off_t size) {
  using namespace overlace::gnn::test;  // NOLINT(google-build-using-namespace)
  const long done =
      changed(Step::allocate, path_of(fd), 0, [&](size_t) { return ::syscall(SYS_fallocate, fd, 0, offset, size); });
  return done == 0 ? 0 : errno;
}
int fsync(int fd) {
  using namespace overlace::gnn::test;  // NOLINT(google-build-using-namespace)
  return static_cast<int>(changed(Step::sync, path_of(fd), 0, [&](size_t) { return ::syscall(SYS_fsync, fd); }));
}
int fdatasync(int fd) {
  using namespace overlace::gnn::test;  // NOLINT(google-build-using-namespace)
  return static_cast<int>(changed(Step::sync, path_of(fd), 0, [&](size_t) { return ::syscall(SYS_fdatasync, fd); }));
}
int rename(const char* from, const char* to) noexcept {
  using namespace overlace::gnn::test;  // NOLINT(google-build-using-namespace)
  return static_cast<int>(changed(Step::rename, to, 0, [&](size_t) { return ::syscall(SYS_rename, from, to); }));
}
int open(const char* path, int flags, ...) {
  using namespace overlace::gnn::test;  // NOLINT(google-build-using-namespace)
  mode_t mode = 0;
  if ((flags & O_CREAT) != 0) {
    va_list list;
    va_start(list, flags);
    mode = va_arg(list, mode_t);
    va_end(list);
  }
  const auto call = [&](size_t) { return ::syscall(SYS_openat, AT_FDCWD, path, flags, mode); };
  if ((flags & O_CREAT) == 0) return static_cast<int>(call(0));
  return static_cast<int>(changed(Step::open, path, 0, call));
}

}  // extern "C"
