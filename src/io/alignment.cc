#include "src/io/alignment.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace overlace::io {
namespace {

constexpr int64_t kMostAlignment = int64_t{1} << 20;

bool is_power_of_two(int64_t value) { return value > 0 && (value & (value - 1)) == 0; }

}  // namespace

base::Result<Alignment> direct_alignment(int fd) {
  Alignment alignment;
#ifdef STATX_DIOALIGN
  struct statx info {};
  if (::statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &info) != 0) {
    // NOTE: a sandbox may forbid statx; reading goes on with the alignment that every disk accepts.
    if (errno == ENOSYS || errno == EPERM) return alignment;
    return base::error(Errc::io, "statx of descriptor {}: {}", fd, std::strerror(errno));
  }
  if ((info.stx_mask & STATX_DIOALIGN) == 0) return alignment;
  if (info.stx_dio_mem_align == 0 || info.stx_dio_offset_align == 0)
    return base::error(Errc::not_supported, "descriptor {}: its file system has no direct I/O for this file", fd);
  alignment = {static_cast<int64_t>(info.stx_dio_mem_align), static_cast<int64_t>(info.stx_dio_offset_align)};
#else
  (void)fd;
#endif
  for (const int64_t value : {alignment.memory_bytes, alignment.offset_bytes})
    if (!is_power_of_two(value) || value > kMostAlignment)
      return base::error(Errc::not_supported,
                         "descriptor {}: direct I/O asks for an alignment of {}, wanted a power of "
                         "two of at most {}",
                         fd, value, kMostAlignment);
  return alignment;
}

AlignedBuffer::~AlignedBuffer() { std::free(data_); }

AlignedBuffer::AlignedBuffer(AlignedBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

AlignedBuffer& AlignedBuffer::operator=(AlignedBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

base::Result<AlignedBuffer> AlignedBuffer::allocate(size_t size, size_t alignment) {
  AlignedBuffer buffer;
  if (size == 0) return buffer;
  if (!is_power_of_two(static_cast<int64_t>(alignment)))
    return base::invalid_argument("buffer: alignment is {}, wanted a power of two", alignment);
  void* data = nullptr;
  if (::posix_memalign(&data, std::max(alignment, sizeof(void*)), size) != 0)
    return base::error(Errc::out_of_memory, "buffer: {} bytes of host memory are not to be had", size);
  buffer.data_ = static_cast<std::byte*>(data);
  buffer.size_ = size;
  return buffer;
}

}  // namespace overlace::io
