#include "src/io/engine.h"

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <random>
#include <thread>

#include "tests/unit/io/scratch.h"

namespace overlace::io {
namespace {

using base::Status;

constexpr int64_t kFileBytes = (3 << 20) + 1234;

std::unique_ptr<IoEngine> engine_or_null(EngineOptions options) {
  base::Result<std::unique_ptr<IoEngine>> engine = IoEngine::open(std::move(options));
  return engine.ok() ? std::move(engine).value() : nullptr;
}

/// All engines; one that this machine refuses is a skip.
class Engines : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const auto choice = choose_engine(GetParam());
    if (!choice.ok()) GTEST_SKIP() << choice.status().message();
    ASSERT_TRUE(scratch_.is_there());
    write_pattern(scratch_.path("data"), kFileBytes);
  }
  std::unique_ptr<IoEngine> open(EngineOptions options = {}) {
    options.engine = GetParam();
    return engine_or_null(std::move(options));
  }
  Scratch scratch_;
};

INSTANTIATE_TEST_SUITE_P(Io, Engines, testing::Values("uring", "pread", "buffered"),
                         [](const testing::TestParamInfo<const char*>& named) { return std::string(named.param); });

TEST_P(Engines, ReadAnyRangeIntoAnyBuffer) {
  auto engine = open({.depth = 8, .request_bytes = 64 << 10});
  ASSERT_NE(engine, nullptr);
  EXPECT_EQ(engine->name(), GetParam());
  auto file = engine->open_file(scratch_.path("data"), FileMode::read);
  ASSERT_TRUE(file.ok()) << file.status().message();
  std::mt19937_64 random(5);
  constexpr int kReads = 200;
  std::vector<AlignedBuffer> buffers;
  std::vector<std::array<int64_t, 3>> wanted;  // offset, bytes, where in the buffer
  for (int i = 0; i < kReads; ++i) {
    const auto pick = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
    int64_t offset = pick(kFileBytes), bytes = std::min(pick(300000), kFileBytes - offset);
    if (i % 3 == 0) offset = offset / 4096 * 4096, bytes = std::min<int64_t>(bytes / 4096 * 4096, kFileBytes - offset);
    if (i % 7 == 0) bytes = kFileBytes - offset;  // to the end
    const int64_t place = i % 2 == 0 ? 0 : pick(100);
    const int64_t extra = i % 5 == 0 ? 8192 : 0;
    buffers.push_back(AlignedBuffer::allocate(static_cast<size_t>(place + bytes + extra + 1)).value());
    wanted.push_back({offset, bytes, place});
    const std::span<std::byte> room(buffers.back().data() + place, static_cast<size_t>(bytes + extra));
    ASSERT_TRUE(engine->read(*file, offset, bytes, room, static_cast<uint64_t>(i)).ok());
  }
  std::vector<bool> seen(kReads);
  while (engine->pending() > 0) {
    Completion done[7];
    const auto n = engine->poll(done);
    ASSERT_TRUE(n.ok()) << n.status().message();
    for (size_t k = 0; k < *n; ++k) {
      ASSERT_TRUE(done[k].status.ok()) << done[k].status.message();
      ASSERT_FALSE(seen[done[k].tag]);
      seen[done[k].tag] = true;
      const auto [offset, bytes, place] = wanted[done[k].tag];
      EXPECT_EQ(done[k].bytes, bytes);
      const std::byte* got = buffers[done[k].tag].data() + place;
      ASSERT_EQ(std::vector<std::byte>(got, got + bytes), pattern(offset, bytes)) << done[k].tag;
    }
  }
  EXPECT_EQ(std::count(seen.begin(), seen.end(), true), kReads);
  EXPECT_GT(engine->stats().through_cache, 0);
}

TEST_P(Engines, AlignedReadsPassTheCacheBy) {
  auto engine = open();
  auto file = engine->open_file(scratch_.path("data"), FileMode::read).value();
  if (engine->name() == "buffered") {
    EXPECT_FALSE(file->is_direct());
    return;
  }
  if (!file->is_direct()) GTEST_SKIP() << "no direct I/O here";
  AlignedBuffer buffer = AlignedBuffer::allocate(4 << 20).value();
  // The last page is not full: it is rounded up, for the buffer has room.
  ASSERT_TRUE(engine->read(file, 0, kFileBytes, {buffer.data(), buffer.size()}, 0).ok());
  ASSERT_TRUE(engine->drain().ok());
  EXPECT_EQ(engine->stats().through_cache, 0);
  EXPECT_EQ(engine->stats().requests, 4);
  EXPECT_EQ(engine->stats().bytes_read, kFileBytes);
  EXPECT_EQ(std::memcmp(buffer.data(), pattern(0, kFileBytes).data(), kFileBytes), 0);
}

TEST_P(Engines, WriteAnyRange) {
  auto engine = open({.depth = 4, .request_bytes = 16 << 10});
  auto file = engine->open_file(scratch_.path("out"), FileMode::create).value();
  const std::vector<std::byte> all = pattern(0, kFileBytes);
  AlignedBuffer copy = AlignedBuffer::allocate(all.size()).value();
  std::memcpy(copy.data(), all.data(), all.size());
  const int64_t cuts[] = {0, 4096, 5000, 8192, 100000, 1 << 20, kFileBytes};
  for (size_t i = 0; i + 1 < std::size(cuts); ++i) {
    const std::span<const std::byte> part(copy.data() + cuts[i], static_cast<size_t>(cuts[i + 1] - cuts[i]));
    ASSERT_TRUE(engine->write(file, cuts[i], part, i).ok());
    const Status done = engine->drain();  // neighbours share a page
    ASSERT_TRUE(done.ok()) << done.message();
  }
  EXPECT_EQ(engine->stats().bytes_written, kFileBytes);
  ASSERT_TRUE(file->sync().ok());
  std::ifstream in(scratch_.path("out"), std::ios::binary);
  std::vector<char> got((std::istreambuf_iterator<char>(in)), {});
  ASSERT_EQ(got.size(), all.size());
  EXPECT_EQ(std::memcmp(got.data(), all.data(), all.size()), 0);
}

TEST_P(Engines, ReadingPastTheEndIsAnErrorThatShowsBoth) {
  auto engine = open();
  auto file = engine->open_file(scratch_.path("data"), FileMode::read).value();
  AlignedBuffer buffer = AlignedBuffer::allocate(8192).value();
  ASSERT_TRUE(engine->read(file, kFileBytes - 100, 200, {buffer.data(), 200}, 0).ok());
  const Status past = engine->drain();
  EXPECT_EQ(past.code(), Errc::io);
  EXPECT_EQ(past.message(), base::format("{}: read of 200 bytes at offset {} got 100: the file has {} bytes",
                                         scratch_.path("data"), kFileBytes - 100, kFileBytes));
  EXPECT_EQ(engine->stats().failed, 1);
}

TEST_P(Engines, RefuseRangesAndBuffersBeforeAnythingMoves) {
  auto engine = open();
  auto file = engine->open_file(scratch_.path("data"), FileMode::read).value();
  std::byte byte{};
  EXPECT_EQ(engine->read(file, -1, 1, {&byte, 1}, 0).code(), Errc::invalid_argument);
  EXPECT_EQ(engine->read(file, 0, -1, {&byte, 1}, 0).code(), Errc::invalid_argument);
  EXPECT_EQ(engine->read(file, INT64_MAX, 1, {&byte, 1}, 0).code(), Errc::invalid_argument);
  const Status small = engine->read(file, 0, 2, {&byte, 1}, 0);
  EXPECT_EQ(small.message(),
            scratch_.path("data") + ": read of 2 bytes with a buffer of 1, wanted a buffer of at least 2");
  EXPECT_EQ(engine->pending(), 0);
  EXPECT_EQ(engine->stats().requests, 0);
}

TEST_P(Engines, AReadOfNothingCompletes) {
  auto engine = open();
  auto file = engine->open_file(scratch_.path("data"), FileMode::read).value();
  ASSERT_TRUE(engine->read(file, 10, 0, {}, 77).ok());
  Completion done[1];
  EXPECT_EQ(engine->poll(done).value(), 1u);
  EXPECT_EQ(done[0].tag, 77u);
}

TEST_P(Engines, ClosingWaitsForWhatIsUnderWay) {
  for (int i = 0; i < 20; ++i) {
    AlignedBuffer buffer = AlignedBuffer::allocate(4 << 20).value();
    auto engine = open({.depth = 2, .request_bytes = 4096});
    auto file = engine->open_file(scratch_.path("data"), FileMode::read).value();
    ASSERT_TRUE(engine->read(std::move(file), 0, kFileBytes, {buffer.data(), buffer.size()}, 0).ok());
    engine.reset();  // then the buffer goes: the address sanitizer sees a late thread
  }
}

TEST_P(Engines, MemoryThatTheKernelKnowsReadsTheSame) {
  auto engine = open();
  AlignedBuffer buffer = AlignedBuffer::allocate(1 << 20).value();
  (void)engine->use_memory({buffer.data(), buffer.size()});  // may be refused
  auto file = engine->open_file(scratch_.path("data"), FileMode::read).value();
  ASSERT_TRUE(engine->read(file, 8192, 1 << 19, {buffer.data() + 4096, 1 << 19}, 0).ok());
  const Status done = engine->drain();
  ASSERT_TRUE(done.ok()) << done.message();
  EXPECT_EQ(std::memcmp(buffer.data() + 4096, pattern(8192, 1 << 19).data(), 1 << 19), 0);
}

TEST_P(Engines, ReadFromMemoryFiles) {
  const Scratch memory("/dev/shm");
  if (!memory.is_there()) GTEST_SKIP() << "no /dev/shm";
  write_pattern(memory.path("data"), 100000);
  auto engine = open();
  auto file = engine->open_file(memory.path("data"), FileMode::read);
  ASSERT_TRUE(file.ok()) << file.status().message();
  AlignedBuffer buffer = AlignedBuffer::allocate(1 << 20).value();
  ASSERT_TRUE(engine->read(*file, 0, 100000, {buffer.data(), buffer.size()}, 0).ok());
  ASSERT_TRUE(engine->drain().ok());
  EXPECT_EQ(std::memcmp(buffer.data(), pattern(0, 100000).data(), 100000), 0);
}

/// Refuses what passes the cache by, as some file systems do although they open such files.
class NoDirectQueue final : public Queue {
 public:
  NoDirectQueue(std::unique_ptr<Queue> inner, int* direct_fd) : inner_(std::move(inner)), direct_fd_(direct_fd) {}
  const char* name() const override { return "no direct"; }
  int capacity() const override { return inner_->capacity(); }
  void push(const QueueRequest& r) override {
    if (r.fd == *direct_fd_)
      refused_.push_back({r.id, -EINVAL});
    else
      inner_->push(r);
  }
  Status submit() override { return inner_->submit(); }
  base::Result<size_t> wait(std::span<QueueResult> results, int64_t timeout_ms) override {
    if (refused_.empty()) return inner_->wait(results, timeout_ms);
    const size_t n = std::min(results.size(), refused_.size());
    std::copy_n(refused_.end() - static_cast<ptrdiff_t>(n), n, results.begin());
    refused_.resize(refused_.size() - n);
    return n;
  }

 private:
  std::unique_ptr<Queue> inner_;
  int* direct_fd_;
  std::vector<QueueResult> refused_;
};

TEST(Engine, ADirectRequestThatIsRefusedGoesThroughTheCache) {
  Scratch scratch;
  write_pattern(scratch.path("data"), kFileBytes);
  int fd = -1;
  auto engine = engine_or_null({.engine = "pread", .request_bytes = 1 << 18, .wrap = [&](std::unique_ptr<Queue> inner) {
                                  return std::make_unique<NoDirectQueue>(std::move(inner), &fd);
                                }});
  auto file = engine->open_file(scratch.path("data"), FileMode::read).value();
  if (!file->is_direct()) GTEST_SKIP() << "no direct I/O here";
  fd = file->descriptor(true);
  AlignedBuffer buffer = AlignedBuffer::allocate(4 << 20).value();
  ASSERT_TRUE(engine->read(file, 0, kFileBytes, {buffer.data(), buffer.size()}, 0).ok());
  const Status done = engine->drain();
  ASSERT_TRUE(done.ok()) << done.message();
  EXPECT_FALSE(file->is_direct());
  EXPECT_EQ(std::memcmp(buffer.data(), pattern(0, kFileBytes).data(), kFileBytes), 0);
}

/// Never answers.
class SilentQueue final : public Queue {
 public:
  const char* name() const override { return "silent"; }
  int capacity() const override { return 4; }
  void push(const QueueRequest&) override {}
  Status submit() override { return {}; }
  base::Result<size_t> wait(std::span<QueueResult>, int64_t timeout_ms) override {
    std::this_thread::sleep_for(std::chrono::milliseconds(timeout_ms));
    return size_t{0};
  }
};

TEST(Engine, AWaitEndsWithTheRequestThatDidNot) {
  Scratch scratch;
  write_pattern(scratch.path("data"), 8192);
  auto engine = engine_or_null({.engine = "pread", .timeout_ms = 50, .wrap = [](std::unique_ptr<Queue>) {
                                  return std::make_unique<SilentQueue>();
                                }});
  auto file = engine->open_file(scratch.path("data"), FileMode::read).value();
  std::vector<std::byte> buffer(8192);
  ASSERT_TRUE(engine->read(file, 4096, 4096, buffer, 0).ok());
  Completion done[1];
  EXPECT_EQ(engine->poll(done, 0).value(), 0u);
  const Status status = engine->poll(done).status();
  EXPECT_EQ(status.code(), Errc::timeout);
  EXPECT_EQ(status.message(), scratch.path("data") + ": read of 4096 bytes at offset 4096: 0 moved within 50 ms");
}

TEST(Engine, WordsAndLimitsAreChecked) {
  EXPECT_EQ(choose_engine("fast").status().message(), "engine is \"fast\", wanted auto, uring, pread or buffered");
  EXPECT_EQ(IoEngine::open({.engine = "pread", .depth = 0}).status().message(), "engine: depth is 0, wanted 1 to 4096");
  EXPECT_EQ(IoEngine::open({.engine = "pread", .request_bytes = 5000}).status().message(),
            "engine: request_bytes is 5000, wanted a multiple of 4096 of at most 1073741824");
  const auto automatic = choose_engine("auto");
  ASSERT_TRUE(automatic.ok());
  EXPECT_EQ(automatic->reason.empty(), automatic->name == "uring");
}

/// From now on this thread, and it alone, gets `code` from io_uring_setup, as in many containers.
bool forbid_uring(int code) {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_io_uring_setup, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<uint32_t>(code)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{static_cast<unsigned short>(std::size(filter)), filter};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

TEST(Engine, WhereTheKernelRefusesUringThreadsReadAndTheReasonIsKept) {
  Scratch scratch;
  write_pattern(scratch.path("data"), kFileBytes);
  for (const int code : {EPERM, ENOSYS}) {
    bool is_forbidden = false;
    EngineChoice automatic;
    Status asked, read;
    std::vector<std::byte> buffer(kFileBytes);
    std::thread sandboxed([&] {
      is_forbidden = forbid_uring(code);
      if (!is_forbidden) return;
      automatic = choose_engine("auto").value();
      asked = choose_engine("uring").status();
      auto engine = engine_or_null({.engine = "auto"});
      auto file = engine->open_file(scratch.path("data"), FileMode::read).value();
      read = engine->read(file, 0, kFileBytes, buffer, 0);
      if (read.ok()) read = engine->drain();
    });
    sandboxed.join();
    if (!is_forbidden) GTEST_SKIP() << "no seccomp here";
    EXPECT_EQ(automatic.name, "pread");
    EXPECT_NE(automatic.reason.find("io_uring: "), std::string::npos);
    EXPECT_EQ(asked.code(), Errc::not_supported);
    EXPECT_EQ(asked.message(), automatic.reason);
    EXPECT_TRUE(read.ok()) << read.message();
    EXPECT_TRUE(std::equal(buffer.begin(), buffer.end(), pattern(0, kFileBytes).begin()));
  }
}

// A child has room for some stacks of threads, or for none, and reads with those that it has.
TEST(Engine, ReadsWithTheThreadsThatThereAre) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || defined(__clang__)
  GTEST_SKIP() << "sanitizers need more addresses than a limit leaves";
#endif
  Scratch scratch;
  write_pattern(scratch.path("data"), 8192);
  for (const int64_t room : {int64_t{40} << 20, int64_t{1} << 20}) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      int64_t pages = 0;
      std::ifstream("/proc/self/statm") >> pages;
      const auto bytes = static_cast<rlim_t>(pages * ::sysconf(_SC_PAGESIZE) + room);
      const rlimit limit{bytes, bytes};
      EngineOptions options;
      options.engine = "pread";
      options.depth = 64;
      if (::setrlimit(RLIMIT_AS, &limit) != 0) ::_exit(3);
      const auto engine = IoEngine::open(options);
      if (!engine.ok()) ::_exit(engine.status().code() == Errc::out_of_memory ? 1 : 2);
      std::vector<std::byte> buffer(8192);
      const auto file = (*engine)->open_file(scratch.path("data"), FileMode::read);
      if (!file.ok() || !(*engine)->read(*file, 0, 8192, buffer, 0).ok() || !(*engine)->drain().ok()) ::_exit(4);
      ::_exit(buffer == pattern(0, 8192) ? 0 : 5);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
    // Stacks of earlier tests' threads may be there to be used again: then it reads with little room, too.
    EXPECT_LE(WEXITSTATUS(status), room > 20 << 20 ? 0 : 1);
  }
}

}  // namespace
}  // namespace overlace::io
