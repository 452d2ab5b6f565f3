// Tensor views, statistics, log lines and files.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <thread>
#include <vector>

#include "overlace/tensor.h"
#include "src/base/file.h"
#include "src/base/log.h"
#include "src/base/statistics.h"
#include "src/base/status.h"

namespace overlace::base {
namespace {

std::string message_of(const std::function<void()>& thrower) {
  try {
    thrower();
  } catch (const InvalidArgument& e) {
    return e.what();
  }
  return "nothing thrown";
}

TEST(Tensor, ContiguousRowsAndTransposed) {
  float data[24];
  const TensorView t = TensorView::contiguous(data, DType::fp32, {2, 3, 4});
  EXPECT_EQ(t.shape(), "(2, 3, 4)");
  EXPECT_EQ(t.numel(), 24);
  EXPECT_EQ(t.stride(0), 12);
  EXPECT_EQ(t.stride(1), 4);
  EXPECT_EQ(t.stride(2), 1);
  EXPECT_FALSE(TensorView().defined());
  EXPECT_EQ(TensorView().numel(), 0);
  const TensorView weight = TensorView::contiguous(data, DType::fp32, {6, 4});
  const TensorView b = weight.transposed();
  EXPECT_EQ(b.shape(), "(4, 6)");
  EXPECT_EQ(b.stride(0), 1);
  EXPECT_EQ(b.stride(1), 4);
  const TensorView part = weight.rows(2, 3);
  EXPECT_EQ(part.shape(), "(3, 4)");
  EXPECT_EQ(part.data, data + 8);
  EXPECT_EQ(weight.rows(6, 0).numel(), 0);
  EXPECT_EQ(b.rows(1, 2).data, data + 1);
  const TensorView half = TensorView::contiguous(data, DType::bf16, {5});
  EXPECT_EQ(half.rows(3, 1).data, reinterpret_cast<char*>(data) + 6);
}

TEST(Tensor, RefusesWhatIsNotThere) {
  const TensorView t = TensorView::contiguous(nullptr, DType::fp32, {6, 4});
  EXPECT_EQ(message_of([&] { (void)t.rows(4, 3); }), "rows [4, 4 + 3) of a tensor (6, 4), wanted rows within [0, 6)");
  EXPECT_NE(message_of([&] { (void)t.rows(-1, 1); }), "nothing thrown");
  EXPECT_NE(message_of([&] { (void)t.rows(0, -1); }), "nothing thrown");
  EXPECT_NE(message_of([&] { (void)t.rows(INT64_MAX, INT64_MAX); }), "nothing thrown");
  EXPECT_NE(message_of([&] { (void)TensorView().rows(0, 0); }), "nothing thrown");
  EXPECT_EQ(message_of([&] { (void)TensorView::contiguous(nullptr, DType::i8, {2}).transposed(); }),
            "transposed: tensor (2) has 1 dimensions, wanted 2");
  EXPECT_EQ(message_of([&] {
              (void)TensorView::contiguous(nullptr, DType::i8, {1, 1, 1, 1, 1});
            }),
            "tensor: 5 dimensions, wanted at most 4");
  EXPECT_EQ(message_of([&] {
              (void)TensorView::contiguous(nullptr, DType::i8, {3, -2});
            }),
            "tensor: dimension 1 is -2, wanted >= 0");
  EXPECT_EQ(TensorView::contiguous(nullptr, DType::i8, {0, 5}).numel(), 0);
}

TEST(Statistics, MedianAndPercentiles) {
  const std::vector<double> odd = {5, 1, 3}, even = {4, 1, 2, 10}, one = {7};
  EXPECT_EQ(median(odd), 3);
  EXPECT_EQ(median(even), 3);
  EXPECT_EQ(median(one), 7);
  EXPECT_EQ(percentile(even, 0), 1);
  EXPECT_EQ(percentile(even, 100), 10);
  EXPECT_DOUBLE_EQ(percentile(odd, 25), 2);
  EXPECT_DOUBLE_EQ(percentile(odd, 90), 4.6);
  EXPECT_THROW(median({}), Internal);
  EXPECT_THROW(percentile(odd, 101), Internal);
  EXPECT_THROW(percentile(odd, -1), Internal);
}

class Log : public ::testing::Test {
 protected:
  void TearDown() override { set_log_sink(nullptr, LogLevel::warn); }
  void collect(LogLevel level) {
    set_log_sink(
        [this](LogLevel l, std::string_view line) {
          levels.push_back(l);
          lines.emplace_back(line);
        },
        level);
  }
  std::vector<LogLevel> levels;
  std::vector<std::string> lines;
};

TEST_F(Log, IsSilentWithoutASink) {
  EXPECT_FALSE(log_enabled(LogLevel::error));
  log(LogLevel::error, "runtime", "nobody hears {}", 1);
  log_line(LogLevel::error, "runtime", "this");
  warn_once("runtime", "or this");
}

TEST_F(Log, PassesLinesUpToItsLevel) {
  collect(LogLevel::info);
  log(LogLevel::info, "runtime", "peer {} has no direct access; it uses {}", 3, "nccl");
  log(LogLevel::debug, "runtime", "not shown");
  log(LogLevel::error, "exec", "bad");
  EXPECT_EQ(lines, (std::vector<std::string>{"I runtime: peer 3 has no direct access; it uses nccl", "E exec: bad"}));
  EXPECT_EQ(levels, (std::vector<LogLevel>{LogLevel::info, LogLevel::error}));
}

TEST_F(Log, NamesTheRankOfItsThread) {
  collect(LogLevel::warn);
  std::thread([] {
    set_log_rank(2, 4);
    log(LogLevel::warn, "runtime", "late");
  }).join();
  log(LogLevel::warn, "runtime", "none");
  EXPECT_EQ(lines, (std::vector<std::string>{"W r2/4 runtime: late", "W runtime: none"}));
}

TEST_F(Log, WarnsOncePerText) {
  collect(LogLevel::warn);
  for (int i = 0; i < 3; ++i) warn_once("exec", "slow path");
  warn_once("exec", "other path");
  warn_once("ops", "slow path");
  EXPECT_EQ(lines, (std::vector<std::string>{"W exec: slow path", "W exec: other path", "W ops: slow path"}));
}

TEST_F(Log, ASinkMayLog) {
  int depth = 0;
  set_log_sink(
      [&](LogLevel, std::string_view) {
        if (++depth < 3) log(LogLevel::warn, "sink", "again");
      },
      LogLevel::warn);
  log(LogLevel::warn, "a", "b");
  EXPECT_EQ(depth, 3);
}

class File : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/overlace_file_XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    folder = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder); }
  size_t num_entries() const {
    return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(folder), {}));
  }
  std::string folder;
};

TEST_F(File, WritesAndReadsWholeFiles) {
  const std::string path = folder + "/a.bin";
  std::string bytes(200000, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 31 >> 3);
  ASSERT_TRUE(write_file(path, bytes).ok());
  EXPECT_EQ(*read_file(path), bytes);
  ASSERT_TRUE(write_file(path, "short").ok());
  EXPECT_EQ(*read_file(path), "short");
  EXPECT_EQ(num_entries(), 1u);
}

TEST_F(File, NamesPathAndReason) {
  const std::string missing = folder + "/no/such/file";
  EXPECT_EQ(read_file(missing).status().code(), Errc::io);
  EXPECT_EQ(read_file(missing).status().message(), "cannot open " + missing + ": No such file or directory");
  EXPECT_EQ(write_file(missing, "x").message(), "cannot create " + missing + ": No such file or directory");
  EXPECT_EQ(read_file(folder).status().message(), "cannot read " + folder + ": Is a directory");
  EXPECT_EQ(write_file(folder, "x").message(), "cannot open " + folder + ": Is a directory");
}

TEST_F(File, AFullDiskLeavesNothingBehind) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  EXPECT_EQ(write_file("/dev/full", "x").message(), "cannot write /dev/full: No space left on device");
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/full"));
}

TEST_F(File, AFailedWriteKeepsTheOldFile) {
  const std::string path = folder + "/target";
  ASSERT_TRUE(write_file(path, "old").ok());
  // A limit on file sizes fails the write half way, as a full disk does.
  struct rlimit old_limit {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old_limit), 0);
  const auto old_handler = ::signal(SIGXFSZ, SIG_IGN);
  const struct rlimit small { 1000, old_limit.rlim_max };
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const Status status = write_file(path, std::string(5000, 'x'));
  ::setrlimit(RLIMIT_FSIZE, &old_limit);
  ::signal(SIGXFSZ, old_handler);
  EXPECT_EQ(status.message(), "cannot write " + path + ": File too large");
  EXPECT_EQ(*read_file(path), "old");
  EXPECT_EQ(num_entries(), 1u);
}

TEST_F(File, ReplacesAReadOnlyFile) {
  const std::string path = folder + "/target";
  ASSERT_TRUE(write_file(path, "old").ok());
  std::filesystem::permissions(path, std::filesystem::perms::owner_read);
  ASSERT_TRUE(write_file(path, "new").ok());  // a rename asks the folder, not the file
  EXPECT_EQ(*read_file(path), "new");
}

TEST_F(File, FollowsALinkToItsTarget) {
  ASSERT_TRUE(write_file(folder + "/real", "1").ok());
  std::filesystem::create_symlink(folder + "/real", folder + "/link");
  ASSERT_TRUE(write_file(folder + "/link", "2").ok());
  EXPECT_TRUE(std::filesystem::is_symlink(folder + "/link"));
  EXPECT_EQ(*read_file(folder + "/real"), "2");
}

TEST_F(File, WritesIntoPipes) {
  const std::string path = folder + "/pipe";
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  Result<std::string> got = std::string();
  std::thread reader([&] { got = read_file(path); });
  EXPECT_TRUE(write_file(path, "through").ok());
  reader.join();
  EXPECT_EQ(*got, "through");
}

}  // namespace
}  // namespace overlace::base
