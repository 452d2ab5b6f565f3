// Durable writes: what the disk refuses to keep is an error, and the old file stays.
#include "src/base/file.h"

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <thread>

namespace overlace::base {
namespace {

/// From now on this thread, and it alone, cannot fsync: EIO.
bool forbid_fsync() {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_fsync, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EIO),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{static_cast<unsigned short>(std::size(filter)), filter};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

TEST(DurableWrite, KeepsTheOldFileWhereTheDiskRefuses) {
  char folder[] = "/tmp/overlace_durable_XXXXXX";
  ASSERT_NE(::mkdtemp(folder), nullptr);
  const std::string path = std::string(folder) + "/file";
  ASSERT_TRUE(write_file_durably(path, "old").ok());
  EXPECT_EQ(*read_file(path), "old");
  bool is_forbidden = false;
  Status durable, plain, synced;
  std::thread thread([&] {
    is_forbidden = forbid_fsync();
    if (!is_forbidden) return;
    durable = write_file_durably(path, "new");
    synced = sync_directory(folder);
    plain = write_file(path + ".plain", "x");
  });
  thread.join();
  if (is_forbidden) {
    EXPECT_EQ(durable.message(), "cannot write " + path + ": Input/output error");
    EXPECT_EQ(*read_file(path), "old");
    EXPECT_EQ(synced.message(), "cannot sync " + std::string(folder) + ": Input/output error");
    EXPECT_TRUE(plain.ok()) << plain.message();
    std::filesystem::remove(path + ".plain");
  }
  size_t files = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++files;
  EXPECT_EQ(files, 1u);  // no temporary file is left
  std::filesystem::remove_all(folder);
  if (!is_forbidden) GTEST_SKIP() << "no seccomp here";
}

TEST(DurableWrite, NamesAFolderThatIsMissing) {
  EXPECT_EQ(sync_directory("/no/such").message(), "cannot open /no/such: No such file or directory");
}

}  // namespace
}  // namespace overlace::base
