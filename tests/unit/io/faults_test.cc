#include "src/io/faults.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "src/io/engine.h"
#include "tests/unit/io/scratch.h"
#include "tests/unit/io/test_size.h"

namespace overlace::io {
namespace {

using base::Status;

constexpr int64_t kFaultyBytes = (1 << 20) + 999;

class Faults : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const auto choice = choose_engine(GetParam());
    if (!choice.ok()) GTEST_SKIP() << choice.status().message();
    write_pattern(scratch_.path("data"), kFaultyBytes);
  }
  std::unique_ptr<IoEngine> open(const FaultOptions& faults, int64_t timeout_ms = 60000, int64_t request_bytes = 8192) {
    EngineOptions options;
    options.engine = GetParam();
    options.depth = 16;
    options.request_bytes = request_bytes;
    options.timeout_ms = timeout_ms;
    options.wrap = with_faults(faults, &counts_);
    auto engine = IoEngine::open(std::move(options));
    EXPECT_TRUE(engine.ok()) << engine.status().message();
    return std::move(engine).value();
  }
  Scratch scratch_;
  FaultCounts counts_;
};

INSTANTIATE_TEST_SUITE_P(Io, Faults, testing::Values("uring", "pread", "buffered"),
                         [](const testing::TestParamInfo<const char*>& named) { return std::string(named.param); });

/// Random reads, `slots` at a time; returns (wrong, failed).
std::pair<int64_t, int64_t> read_randomly(IoEngine& engine, const std::shared_ptr<File>& file, int64_t reads) {
  constexpr size_t kSlots = 24;
  constexpr int64_t kMost = 20000;
  AlignedBuffer memory = AlignedBuffer::allocate(kSlots * 24576).value();
  const std::vector<std::byte> right = pattern(0, kFaultyBytes);
  struct Range {
    int64_t offset = 0, bytes = 0;
  };
  std::vector<Range> ranges(kSlots);
  std::mt19937_64 random(9);
  int64_t begun = 0, wrong = 0, failed = 0;
  const auto begin = [&](size_t slot) {
    Range& range = ranges[slot];
    range.bytes = 1 + static_cast<int64_t>(random() % kMost);
    range.offset = static_cast<int64_t>(random() % static_cast<uint64_t>(kFaultyBytes - range.bytes));
    if (begun % 2 == 0) range.offset &= ~int64_t{4095};
    ++begun;
    EXPECT_TRUE(engine.read(file, range.offset, range.bytes, {memory.data() + slot * 24576, 24576}, slot).ok());
  };
  for (size_t slot = 0; slot < kSlots; ++slot) begin(slot);
  while (engine.pending() > 0) {
    Completion done[8];
    const auto n = engine.poll(done);
    EXPECT_TRUE(n.ok()) << n.status().message();
    if (!n.ok()) break;
    for (size_t i = 0; i < *n; ++i) {
      const size_t slot = done[i].tag;
      const Range range = ranges[slot];
      if (!done[i].status.ok()) {
        ++failed;
        EXPECT_EQ(done[i].status.code(), Errc::io);
        EXPECT_NE(
            done[i].status.message().find(base::format("read of {} bytes at offset {} got", range.bytes, range.offset)),
            std::string::npos)
            << done[i].status.message();
      } else if (std::memcmp(memory.data() + slot * 24576, right.data() + range.offset,
                             static_cast<size_t>(range.bytes)) != 0) {
        ++wrong;
      }
      if (begun < reads) begin(slot);
    }
  }
  return {wrong, failed};
}

TEST_P(Faults, RightBytesOrANamedErrorInManyFaultyReads) {
  auto engine = open({.seed = 3, .short_moves = 0.2, .eio = 0.02, .eagain = 0.2, .late = 0.2, .reorder = true});
  auto file = engine->open_file(scratch_.path("data"), FileMode::read).value();
  const int64_t reads = test_size("OVERLACE_TEST_FAULTY_READS", 10000);
  const auto [wrong, failed] = read_randomly(*engine, file, reads);
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(counts_.short_moves, 1000);
  EXPECT_GT(counts_.eagain, 1000);
  EXPECT_GT(counts_.late, 1000);
  EXPECT_GT(failed, 100);
  EXPECT_LE(failed, counts_.eio);
  EXPECT_EQ(engine->stats().failed, failed);
  EXPECT_LE(engine->stats().repeated, counts_.eagain);
  EXPECT_GT(engine->stats().continued, 0);
}

TEST_P(Faults, AFlippedBitIsDeliveredAsTheDiskWould) {
  auto engine = open({.seed = 4, .flipped = 0.1});
  auto file = engine->open_file(scratch_.path("data"), FileMode::read).value();
  const auto [wrong, failed] = read_randomly(*engine, file, 2000);
  EXPECT_EQ(failed, 0);
  EXPECT_GT(counts_.flipped, 100);
  // A bit behind the wanted end of a page that was rounded up harms nobody.
  EXPECT_GT(wrong, counts_.flipped / 4);
  EXPECT_LE(wrong, counts_.flipped);
}

TEST_P(Faults, WritesAreContinued) {
  auto engine = open({.seed = 5, .short_moves = 0.3, .eagain = 0.3, .late = 0.2, .reorder = true}, 60000, 16384);
  auto file = engine->open_file(scratch_.path("out"), FileMode::create).value();
  AlignedBuffer data = AlignedBuffer::allocate(kFaultyBytes).value();
  std::memcpy(data.data(), pattern(0, kFaultyBytes).data(), kFaultyBytes);
  ASSERT_TRUE(engine->write(file, 0, {data.data(), data.size()}, 0).ok());
  const Status done = engine->drain();
  ASSERT_TRUE(done.ok()) << done.message();
  EXPECT_GT(counts_.short_moves, 3);
  EXPECT_EQ(file->size().value(), kFaultyBytes);
  auto plain = IoEngine::open({.engine = "pread"}).value();
  AlignedBuffer back = AlignedBuffer::allocate(kFaultyBytes).value();
  ASSERT_TRUE(plain->read(file, 0, kFaultyBytes, {back.data(), back.size()}, 0).ok());
  ASSERT_TRUE(plain->drain().ok());
  EXPECT_EQ(std::memcmp(back.data(), data.data(), kFaultyBytes), 0);
}

TEST_P(Faults, AFullDiskIsNamed) {
  auto engine = open({.seed = 6, .enospc = 1});
  auto file = engine->open_file(scratch_.path("out"), FileMode::create).value();
  const std::vector<std::byte> data(10000);
  ASSERT_TRUE(engine->write(file, 4096, data, 0).ok());
  const Status done = engine->drain();
  EXPECT_EQ(done.code(), Errc::io);
  EXPECT_EQ(done.message(),
            scratch_.path("out") + ": write of 10000 bytes at offset 4096 got 0: No space left on device (errno 28)");
}

TEST_P(Faults, WhatIsNeverTakenEndsAtTheDeadline) {
  auto engine = open({.seed = 7, .eagain = 1}, 30);
  auto file = engine->open_file(scratch_.path("data"), FileMode::read).value();
  std::vector<std::byte> buffer(100);
  ASSERT_TRUE(engine->read(file, 5, 100, buffer, 0).ok());
  const Status done = engine->drain();
  EXPECT_NE(done.message().find("Resource temporarily unavailable"), std::string::npos) << done.message();
}

}  // namespace
}  // namespace overlace::io
