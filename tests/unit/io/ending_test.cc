// What is left behind where a request fails, is late for good, or the queue itself fails: no buffer that somebody still
// writes into, no success after a failure, no wait without an end.
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>

#include "src/io/engine.h"
#include "src/io/faults.h"
#include "src/io/stream.h"
#include "tests/unit/io/scratch.h"

namespace overlace::io {
namespace {

constexpr int64_t kEndingBytes = 300000;

/// Works until `broken` is set; then nothing can be asked of it any more.
class BreakableQueue final : public Queue {
 public:
  BreakableQueue(std::unique_ptr<Queue> inner, const bool* broken) : inner_(std::move(inner)), broken_(broken) {}
  const char* name() const override { return inner_->name(); }
  int capacity() const override { return inner_->capacity(); }
  void push(const QueueRequest& request) override { inner_->push(request); }
  base::Status submit() override { return *broken_ ? failure() : inner_->submit(); }
  base::Result<size_t> wait(std::span<QueueResult> results, int64_t timeout_ms) override {
    if (*broken_) return failure();
    return inner_->wait(results, timeout_ms);
  }

 private:
  static base::Status failure() { return base::error(Errc::io, "queue: gone"); }
  std::unique_ptr<Queue> inner_;
  const bool* broken_;
};

class Ending : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const auto choice = choose_engine(GetParam());
    if (!choice.ok()) GTEST_SKIP() << choice.status().message();
    write_pattern(scratch_.path("data"), kEndingBytes);
  }
  std::unique_ptr<IoEngine> open(const FaultOptions& faults, int64_t timeout_ms = 60000) {
    EngineOptions options;
    options.engine = GetParam();
    options.timeout_ms = timeout_ms;
    options.wrap = with_faults(faults, &counts_);
    return IoEngine::open(std::move(options)).value();
  }
  Scratch scratch_;
  FaultCounts counts_;
};

INSTANTIATE_TEST_SUITE_P(Io, Ending, testing::Values("uring", "pread", "buffered"),
                         [](const testing::TestParamInfo<const char*>& named) { return std::string(named.param); });

/// A caller that looks in again and again learns of it, too.
TEST_P(Ending, ShortWaitsNameARequestWhoseTimeIsOver) {
  for (const int64_t wait_ms : {0, 2, 150}) {
    auto engine = open({.stalled = 1, .stall_ms = 700}, 50);
    auto file = engine->open_file(scratch_.path("data"), FileMode::read).value();
    AlignedBuffer buffer = AlignedBuffer::allocate(8192).value();
    ASSERT_TRUE(engine->read(file, 4096, 8192, {buffer.data(), 8192}, 7).ok());
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(600);
    base::Status status;
    while (status.ok() && std::chrono::steady_clock::now() < end) {
      Completion done[4];
      const auto n = engine->poll(done, wait_ms);
      status = n.status();
      EXPECT_EQ(n.ok() ? *n : 0, 0u);
    }
    EXPECT_EQ(status.code(), Errc::timeout) << wait_ms;
    EXPECT_NE(status.message().find("read of 8192 bytes at offset 4096: 0 moved within 50 ms"), std::string::npos)
        << status.message();
    (void)engine->settle();
  }
}

TEST_P(Ending, SettlingWaitsUntilBuffersAreTheCallersAgain) {
  auto engine = open({.stalled = 0.5, .stall_ms = 200}, 50);
  auto file = engine->open_file(scratch_.path("data"), FileMode::read).value();
  AlignedBuffer buffer = AlignedBuffer::allocate(16 * 4096).value();
  for (uint64_t i = 0; i < 16; ++i)
    ASSERT_TRUE(engine->read(file, static_cast<int64_t>(i) * 4096, 4096, {buffer.data() + i * 4096, 4096}, i).ok());
  EXPECT_EQ(engine->drain().code(), Errc::timeout);
  EXPECT_GT(engine->pending(), 0);
  EXPECT_GT(counts_.under_way, 0);
  EXPECT_EQ(engine->settle().code(), Errc::timeout);
  EXPECT_EQ(engine->pending(), 0);
  EXPECT_EQ(counts_.under_way, 0);
  EXPECT_EQ(std::memcmp(buffer.data(), pattern(0, 16 * 4096).data(), 16 * 4096), 0);
  EXPECT_TRUE(engine->settle().ok());  // of what has been asked since: nothing
  ASSERT_TRUE(engine->read(file, 1, 100, {buffer.data(), 200}, 1).ok());
  EXPECT_EQ(engine->pending(), 1);
  (void)engine->settle();
  EXPECT_EQ(std::memcmp(buffer.data(), pattern(1, 100).data(), 100), 0);
}

TEST_P(Ending, AQueueThatFailsEndsEveryRequest) {
  bool broken = false;
  EngineOptions options;
  options.engine = GetParam();
  options.depth = 4;
  options.wrap = [&](std::unique_ptr<Queue> inner) {
    return std::make_unique<BreakableQueue>(std::move(inner), &broken);
  };
  auto engine = IoEngine::open(std::move(options)).value();
  auto file = engine->open_file(scratch_.path("data"), FileMode::read).value();
  std::vector<std::byte> buffer(12 * 1000);
  for (int i = 0; i < 12; ++i) {
    if (i == 6) broken = true;
    // What was taken is known as pending; what was refused is not.
    const int64_t before = engine->pending();
    const base::Status taken = engine->read(file, i * 777, 1000, std::span(buffer).subspan(1000u * i, 1000), 1);
    EXPECT_EQ(engine->pending(), before + (taken.ok() ? 1 : 0)) << i;
  }
  EXPECT_EQ(engine->settle().message(), "queue: gone");
  EXPECT_EQ(engine->pending(), 0);
  EXPECT_EQ(engine->read(file, 0, 10, buffer, 1).message(), "queue: gone");
  EXPECT_EQ(engine->pending(), 0);
  EXPECT_TRUE(engine->settle().ok());
}

TEST_P(Ending, AWriterThatHasFailedNeverSucceedsAfterwards) {
  for (const bool is_long : {false, true}) {
    auto engine = open({.enospc = 1});
    auto file = engine->open_file(scratch_.path("out"), FileMode::create).value();
    auto writer = StreamWriter::open(engine.get(), file, {.chunk_bytes = 4096, .ahead = 3}).value();
    const std::vector<std::byte> data(is_long ? 100000 : 5000, std::byte{7});
    const base::Status first = writer->append(data);
    EXPECT_EQ(first.ok(), !is_long) << first.message();
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(writer->finish().code(), Errc::io) << i;
      EXPECT_EQ(writer->append(data).code(), Errc::io) << i;
    }
  }
}

TEST_P(Ending, AReaderThatHasFailedStaysAtTheHole) {
  auto engine = open({.seed = 3, .eio = 0.5});
  auto file = engine->open_file(scratch_.path("data"), FileMode::read).value();
  auto reader = StreamReader::open(engine.get(), file, 0, kEndingBytes, {.chunk_bytes = 4096, .ahead = 2}).value();
  int64_t at = 0;
  base::Status status;
  while (status.ok() && at < kEndingBytes) {
    const auto chunk = reader->next();
    status = chunk.status();
    if (!chunk.ok()) break;
    ASSERT_EQ(std::memcmp(chunk->data(), pattern(at, std::ssize(*chunk)).data(), chunk->size()), 0) << at;
    at += std::ssize(*chunk);
  }
  ASSERT_EQ(status.code(), Errc::io);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(reader->next().status().message(), status.message());
}

}  // namespace
}  // namespace overlace::io
