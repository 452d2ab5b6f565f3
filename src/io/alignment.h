// What O_DIRECT asks of a file: how buffers, offsets and lengths are aligned; and memory that is aligned so.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/base/ceil_div_pod.h"
#include "src/base/status.h"

namespace overlace::io {

/// Assumed where the kernel does not say: no disk in use asks for more.
inline constexpr int64_t kPageBytes = 4096;

using base::round_up;

/// Both are powers of two, at most 1 MiB.
struct Alignment {
  int64_t memory_bytes = kPageBytes;  // of a buffer's address
  int64_t offset_bytes = kPageBytes;  // of a request's offset and length
};

/// What O_DIRECT asks of the open file, by statx where the kernel gives it, else a page. not_supported where the kernel
/// says that the file cannot be read so; io where statx itself fails.
base::Result<Alignment> direct_alignment(int fd);

/// Memory of the host, aligned, owned; never null unless `size` is 0. Moves, does not copy.
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  ~AlignedBuffer();
  AlignedBuffer(AlignedBuffer&& other) noexcept;
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept;
  /// `alignment` is a power of two; out_of_memory shows the bytes. Pages are not touched.
  static base::Result<AlignedBuffer> allocate(size_t size, size_t alignment = kPageBytes);
  std::byte* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace overlace::io
