#include "src/io/alignment.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>

namespace overlace::io {
namespace {

TEST(Alignment, OfAFileIsAPowerOfTwo) {
  char path[] = "/tmp/overlace_alignment_XXXXXX";
  const int fd = ::mkstemp(path);
  ASSERT_GE(fd, 0);
  const base::Result<Alignment> alignment = direct_alignment(fd);
  ::close(fd);
  ::unlink(path);
  if (!alignment.ok()) GTEST_SKIP() << alignment.status().message();
  for (const int64_t value : {alignment->memory_bytes, alignment->offset_bytes}) {
    EXPECT_GT(value, 0);
    EXPECT_EQ(value & (value - 1), 0) << value;
  }
}

TEST(Alignment, OfAClosedDescriptorIsAnError) {
  const int fd = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  ::close(fd);
  const base::Result<Alignment> alignment = direct_alignment(fd);
#ifdef STATX_DIOALIGN
  ASSERT_FALSE(alignment.ok());
  EXPECT_EQ(alignment.status().code(), Errc::io);
#else
  (void)alignment;
#endif
}

TEST(AlignedBuffer, IsAlignedAndMoves) {
  for (const size_t alignment : {size_t{1}, size_t{512}, size_t{4096}, size_t{65536}}) {
    base::Result<AlignedBuffer> made = AlignedBuffer::allocate(10000, alignment);
    ASSERT_TRUE(made.ok()) << made.status().message();
    AlignedBuffer buffer = std::move(made).value();
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % alignment, 0u);
    std::memset(buffer.data(), 7, buffer.size());
    AlignedBuffer other = std::move(buffer);
    EXPECT_EQ(buffer.data(), nullptr);  // NOLINT(bugprone-use-after-move)
    EXPECT_EQ(other.size(), 10000u);
    EXPECT_EQ(other.data()[9999], std::byte{7});
  }
}

TEST(AlignedBuffer, RefusesWhatIsNoPowerOfTwo) {
  const base::Result<AlignedBuffer> made = AlignedBuffer::allocate(10, 48);
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.status().message(), "buffer: alignment is 48, wanted a power of two");
}

}  // namespace
}  // namespace overlace::io
