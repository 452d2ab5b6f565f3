// overlace/offload.h: every kind of source, restarts, and what is thrown.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "overlace/error.h"
#include "overlace/offload.h"
#include "tests/unit/io/scratch.h"

namespace overlace {
namespace {

using io::pattern;

constexpr int64_t kSmallFileBytes = 100'000;

class PublicBlockStreams : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(scratch_.is_there());
    io::write_pattern(scratch_.path("data"), kSmallFileBytes);
  }
  StreamPiece of_file(int64_t offset, int64_t bytes) const {
    return {.bytes = bytes, .path = scratch_.path("data"), .offset = offset};
  }
  /// Names what is thrown: "Desync: ...".
  template <class Body>
  static std::string thrown(Body body) {
    try {
      body();
      return "nothing";
    } catch (const Error& error) {
      return std::string(errc_name(error.code())) + ": " + error.what();
    }
  }
  io::Scratch scratch_;
};

TEST_F(PublicBlockStreams, TakeFilesMemoryAndFunctions) {
  const std::vector<std::byte> memory = pattern(77, 5000);
  int fills = 0;
  const auto fill = [&fills](std::span<std::byte> to) {  // one after the other, on a thread of the stream
    ++fills;
    std::memset(to.data(), fills, to.size());
  };
  const std::vector<StreamBlock> blocks = {
      {"file", {of_file(123, 9000), of_file(50'000, 1)}},
      {"memory", {{.bytes = 5000, .memory = memory.data()}, of_file(4096, 4096)}},
      {"function", {{.bytes = 300, .fill = fill}, {.bytes = 0, .fill = fill}}},
  };
  const auto same = [](std::span<const std::byte> got, const std::vector<std::byte>& want) {
    return std::equal(got.begin(), got.end(), want.begin(), want.end());
  };
  BlockStream stream(blocks, {0, 1, 2, 1});
  for (int pass = 1; pass <= 5; ++pass) {
    const BlockStream::Pieces file = stream.acquire(0);
    ASSERT_EQ(file.size(), 2u);
    EXPECT_TRUE(same(file[0], pattern(123, 9000)) && same(file[1], pattern(50'000, 1)));
    stream.release(0);
    for (const int block : {1, 2, 1}) {
      const BlockStream::Pieces pieces = stream.acquire(block);
      if (block == 1) {
        EXPECT_TRUE(same(pieces[0], memory) && same(pieces[1], pattern(4096, 4096)));
      } else {
        EXPECT_TRUE(same(pieces[0], std::vector<std::byte>(300, static_cast<std::byte>(pass))));
        EXPECT_TRUE(pieces[1].empty());
      }
      stream.release(block);
    }
  }
  const BlockStreamStats stats = stream.stats();
  EXPECT_EQ(stats.blocks, 20);
  EXPECT_EQ(stats.bytes, 5 * (9001 + 300 + 2 * 9096));
  EXPECT_GT(stats.filled_s, 0);
  EXPECT_EQ(stream.memory().size(), 2u * 4 * 4096);
}

TEST_F(PublicBlockStreams, FillAheadOfUse) {
  std::atomic<int> filled = 0;
  const auto fill = [&filled](std::span<std::byte> to) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    to[0] = static_cast<std::byte>(++filled);
  };
  std::vector<StreamBlock> blocks;
  for (const char* name : {"a", "b", "c"}) blocks.push_back({name, {{.bytes = 1, .fill = fill}}});
  BlockStream stream(blocks, {0, 1, 2}, {.slots = 3});
  while (filled < 3) std::this_thread::yield();  // nothing was asked for yet
  for (int block = 0; block < 3; ++block) EXPECT_EQ(stream.acquire(block)[0][0], static_cast<std::byte>(block + 1));
  EXPECT_EQ(filled, 3) << "a slot in use is filled again";
  stream.release(0);
  while (filled < 4) std::this_thread::yield();
  EXPECT_GE(stream.stats().filled_s, 3 * 0.02) << "of those that were acquired";
}

TEST_F(PublicBlockStreams, BeginAgain) {
  int fills = 0;
  std::vector<StreamBlock> blocks = {{"a", {of_file(0, 10)}}, {"b", {of_file(10, 10)}}, {"c", {of_file(20, 10)}}};
  blocks[1].pieces.push_back({.bytes = 8, .fill = [&fills](std::span<std::byte>) { ++fills; }});
  BlockStream stream(blocks, {0, 1, 2});
  stream.restart();
  stream.acquire(0);
  stream.acquire(1);
  stream.release(0);
  stream.restart();
  EXPECT_EQ(thrown([&] { stream.release(1); }),
            "desync: block stream: block b was released, wanted none: none is in use");
  EXPECT_EQ(thrown([&] { stream.acquire(2); }),
            "desync: block stream: block c was asked for, wanted a, the next of the order");
  EXPECT_EQ(stream.acquire(0)[0][9], io::byte_at(9));
  EXPECT_EQ(stream.acquire(1)[0][9], io::byte_at(19));
  EXPECT_EQ(fills, 3);
  BlockStream moved = std::move(stream);
  moved.release(0);
  EXPECT_EQ(moved.acquire(2)[0][0], io::byte_at(20));
}

TEST_F(PublicBlockStreams, SayWhatFailed) {
  const auto opening = [&](std::vector<StreamBlock> blocks, BlockStreamOptions options = {}) {
    return thrown([&] { BlockStream stream(blocks, {0}, options); });
  };
  const std::string path = scratch_.path("data");
  EXPECT_EQ(opening({{"a", {{.bytes = 3}}}}),
            "invalid_argument: block stream: block a has a piece with 0 sources, wanted one of path, memory, fill");
  EXPECT_EQ(opening({{"a", {{.bytes = 3, .path = path, .memory = &path}}}}),
            "invalid_argument: block stream: block a has a piece with 2 sources, wanted one of path, memory, fill");
  EXPECT_EQ(opening({{"a", {{.bytes = 3, .offset = 7, .memory = &path}}}}),
            "invalid_argument: block stream: block a has offset 7 of a piece without a file, wanted 0");
  EXPECT_EQ(opening({{"a", {{.bytes = -3, .memory = &path}}}}),
            "invalid_argument: block stream: block a has -3 bytes at 0 to fill, wanted 0 or more at 0");
  EXPECT_EQ(opening({{"a", {of_file(99'999, 2)}}}),
            "corrupt: block stream: " + path + " has 100000 bytes, block a wants 2 at 99999");
  EXPECT_EQ(opening({{"a", {of_file(0, 2)}}}, {.slots = 1}),
            "invalid_argument: block stream: slots is 1, wanted 2 or more");
  EXPECT_TRUE(opening({{"a", {{.bytes = 1, .path = scratch_.path("none")}}}}).starts_with("io: ")) << "no such file";
  EXPECT_TRUE(opening({{"a", {of_file(0, 2)}}}, {.engine = "rdma"}).starts_with("invalid_argument: "));

  const auto fails = [](std::span<std::byte>) { throw_error(Errc::corrupt, "head.bin is cut"); };
  BlockStream stream({{"layers.3", {{.bytes = 1, .fill = fails}}}}, {0});
  EXPECT_EQ(thrown([&] { stream.acquire(0); }), "corrupt: block stream: block layers.3: head.bin is cut");
}

TEST_F(PublicBlockStreams, EndAWaitThatIsTooLong) {
  std::atomic<bool> may_end = false;
  const auto stuck = [&may_end](std::span<std::byte>) {
    while (!may_end) std::this_thread::yield();
  };
  BlockStream stream({{"slow", {{.bytes = 1, .fill = stuck}}}}, {0}, {.timeout_ms = 60});
  EXPECT_EQ(thrown([&] { stream.acquire(0); }), "timeout: block stream: block slow did not come within 60 ms");
  may_end = true;
}

TEST_F(PublicBlockStreams, SeeAFileThatIsWrittenWhileItStreams) {
  BlockStream stream({{"a", {of_file(8000, 10)}}}, {0});
  stream.acquire(0);
  stream.release(0);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // file systems count time in ticks
  std::fstream(scratch_.path("data"), std::ios::in | std::ios::out | std::ios::binary).write("new", 3);
  EXPECT_TRUE(thrown([&] { stream.acquire(0); }).starts_with("corrupt: block stream: block a: "));
}

TEST_F(PublicBlockStreams, SeeAFileThatIsCutWhileItStreams) {
  std::vector<StreamBlock> blocks = {{"first", {of_file(0, 4096)}}, {"last", {of_file(90'000, 9'000)}}};
  BlockStream stream(blocks, {0, 1, 0});
  stream.acquire(0);
  stream.acquire(1);
  std::filesystem::resize_file(scratch_.path("data"), 50'000);
  stream.release(0);
  stream.release(1);
  EXPECT_EQ(thrown([&] { stream.acquire(0); }), "corrupt: block stream: block first: " + scratch_.path("data") +
                                                    " was written while it streamed: 50000 bytes, wanted 100000 for "
                                                    "4096 at offset 0");
}

}  // namespace
}  // namespace overlace
