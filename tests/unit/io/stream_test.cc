#include "src/io/stream.h"

#include <gtest/gtest.h>

#include <cstring>

#include "src/io/faults.h"
#include "tests/unit/io/scratch.h"

namespace overlace::io {
namespace {

constexpr int64_t kStreamBytes = 700001;

std::unique_ptr<IoEngine> engine_with(const FaultOptions& faults) {
  EngineOptions options;
  options.engine = "pread";
  options.request_bytes = 8192;
  options.wrap = with_faults(faults);
  return IoEngine::open(std::move(options)).value();
}

TEST(Ring, GivesTheSameMemoryEverySoManyTimes) {
  const Ring own = Ring::make(3, 8192).value();
  EXPECT_EQ(own.slot(1).data(), own.slot(4).data());
  EXPECT_NE(own.slot(1).data(), own.slot(2).data());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(own.slot(2).data()) % 4096, 0u);
  AlignedBuffer memory = AlignedBuffer::allocate(32768).value();
  const Ring given = Ring::make(4, 8192, {memory.data(), memory.size()}).value();
  EXPECT_EQ(given.slot(7).data(), memory.data() + 3 * 8192);
}

TEST(Ring, RefusesMemoryThatDoesNotFit) {
  AlignedBuffer memory = AlignedBuffer::allocate(32768).value();
  EXPECT_EQ(Ring::make(4, 8192, {memory.data() + 8, 32760}).status().message(),
            "ring: 32760 bytes of memory, 8 behind a page's start; wanted 32768 from one on");
  EXPECT_EQ(Ring::make(2, 1000).status().message(),
            "ring: 2 slots of 1000 bytes, wanted at least one, of a multiple of 4096 bytes");
  EXPECT_EQ(Ring::make(0, 4096).status().code(), Errc::invalid_argument);
}

TEST(Stream, ReadsAnyRangeInOrderThroughFaults) {
  Scratch scratch;
  write_pattern(scratch.path("data"), kStreamBytes);
  for (const auto& [offset, bytes] : {std::pair<int64_t, int64_t>{0, kStreamBytes},
                                      {128, kStreamBytes - 128},
                                      {5000, 3},
                                      {65536, 0},
                                      {300000, 262144}}) {
    auto engine = engine_with({.seed = 11, .short_moves = 0.2, .eagain = 0.2, .late = 0.3, .reorder = true});
    auto file = engine->open_file(scratch.path("data"), FileMode::read).value();
    auto reader = StreamReader::open(engine.get(), file, offset, bytes, {.chunk_bytes = 16384, .ahead = 3});
    ASSERT_TRUE(reader.ok()) << reader.status().message();
    std::vector<std::byte> got;
    while (true) {
      const auto chunk = (*reader)->next();
      ASSERT_TRUE(chunk.ok()) << chunk.status().message();
      if (chunk->empty()) break;
      got.insert(got.end(), chunk->begin(), chunk->end());
    }
    EXPECT_EQ(got, pattern(offset, bytes)) << offset << " " << bytes;
  }
}

TEST(Stream, AReaderNamesWhatFailed) {
  Scratch scratch;
  write_pattern(scratch.path("data"), kStreamBytes);
  auto engine = engine_with({});
  auto file = engine->open_file(scratch.path("data"), FileMode::read).value();
  auto reader = StreamReader::open(engine.get(), file, 0, kStreamBytes + 1, {.chunk_bytes = 16384}).value();
  base::Status last;
  for (int i = 0; i < 100 && last.ok(); ++i) {
    const auto chunk = reader->next();
    last = chunk.status();
    if (chunk.ok() && chunk->empty()) break;
  }
  EXPECT_EQ(last.code(), Errc::io);
  EXPECT_NE(last.message().find(base::format("the file has {} bytes", kStreamBytes)), std::string::npos)
      << last.message();
}

TEST(Stream, AReaderMayLeaveEarly) {
  Scratch scratch;
  write_pattern(scratch.path("data"), kStreamBytes);
  auto engine = engine_with({.seed = 2, .late = 0.5});
  auto file = engine->open_file(scratch.path("data"), FileMode::read).value();
  for (int i = 0; i < 10; ++i) {
    auto reader = StreamReader::open(engine.get(), file, 0, kStreamBytes, {.chunk_bytes = 8192, .ahead = 8}).value();
    ASSERT_TRUE(reader->next().ok());
    reader.reset();
    EXPECT_EQ(engine->pending(), 0);
  }
}

TEST(Stream, WritesWhatIsAppended) {
  Scratch scratch;
  const std::vector<std::byte> all = pattern(0, kStreamBytes);
  auto engine = engine_with({.seed = 12, .short_moves = 0.2, .eagain = 0.2, .late = 0.3, .reorder = true});
  auto file = engine->open_file(scratch.path("out"), FileMode::create).value();
  auto writer = StreamWriter::open(engine.get(), file, {.chunk_bytes = 16384, .ahead = 3}).value();
  for (size_t at = 0, n = 1; at < all.size(); at += n, n = (n * 7 + 3) % 50000)
    ASSERT_TRUE(writer->append(std::span(all).subspan(at, std::min(n, all.size() - at))).ok());
  const base::Status done = writer->finish();
  ASSERT_TRUE(done.ok()) << done.message();
  EXPECT_EQ(writer->bytes(), kStreamBytes);
  std::ifstream in(scratch.path("out"), std::ios::binary);
  std::vector<char> got((std::istreambuf_iterator<char>(in)), {});
  ASSERT_EQ(got.size(), all.size());
  EXPECT_EQ(std::memcmp(got.data(), all.data(), all.size()), 0);
}

TEST(Stream, AWriterNamesAFullDisk) {
  Scratch scratch;
  auto engine = engine_with({.seed = 1, .enospc = 1});
  auto file = engine->open_file(scratch.path("out"), FileMode::create).value();
  auto writer = StreamWriter::open(engine.get(), file, {.chunk_bytes = 4096, .ahead = 2}).value();
  base::Status status = writer->append(std::vector<std::byte>(50000));
  if (status.ok()) status = writer->finish();
  EXPECT_EQ(status.code(), Errc::io);
  EXPECT_NE(status.message().find("No space left on device"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace overlace::io
