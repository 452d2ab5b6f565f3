#include "src/offload/block_stream.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "src/io/faults.h"
#include "tests/unit/io/scratch.h"

namespace overlace::offload {
namespace {

using io::pattern;

constexpr int64_t kFileBytes = (2 << 20) + 777;

class BlockStreams : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(scratch_.is_there());
    io::write_pattern(scratch_.path("data"), kFileBytes);
    auto file = io::File::open(scratch_.path("data"), io::FileMode::read);
    ASSERT_TRUE(file.ok()) << file.status().message();
    file_ = *file;
  }
  Block block(const std::string& name, std::vector<std::pair<int64_t, int64_t>> ranges) const {
    Block out{name, {}};
    for (const auto& [offset, bytes] : ranges) out.pieces.push_back({file_, offset, bytes, {}});
    return out;
  }
  std::vector<Block> drawn(std::mt19937_64& random, int count) const {
    std::vector<Block> out;
    for (int b = 0; b < count; ++b) {
      out.push_back({"layers." + std::to_string(b), {}});
      for (uint64_t p = random() % 4; p < 4; ++p) {
        const int64_t bytes = static_cast<int64_t>(random() % (random() % 3 == 0 ? 100'000 : 200));
        out.back().pieces.push_back({file_, static_cast<int64_t>(random() % (kFileBytes - bytes + 1)), bytes, {}});
      }
    }
    return out;
  }
  io::Scratch scratch_;
  std::shared_ptr<io::File> file_;
};

/// Uses `steps` blocks of the order, up to `held` at a time, and compares each byte, at once and before its release.
void walk(BlockStream& stream, const std::vector<Block>& blocks, const std::vector<int>& order, int steps, int held) {
  std::vector<std::span<const std::span<const std::byte>>> in_use;
  const auto is_right = [&](int step, std::span<const std::span<const std::byte>> got) {
    const Block& block = blocks[static_cast<size_t>(order[static_cast<size_t>(step) % order.size()])];
    ASSERT_EQ(got.size(), block.pieces.size()) << block.name;
    for (size_t p = 0; p < got.size(); ++p) {
      const std::vector<std::byte> want = pattern(block.pieces[p].offset, block.pieces[p].bytes);
      ASSERT_TRUE(std::equal(got[p].begin(), got[p].end(), want.begin(), want.end())) << block.name << " step " << step;
    }
  };
  for (int step = 0; step < steps + held; ++step) {
    if (step >= held) {
      is_right(step - held, in_use[static_cast<size_t>(step - held)]);
      ASSERT_TRUE(stream.release(order[static_cast<size_t>(step - held) % order.size()]).ok());
    }
    if (step >= steps) continue;
    const auto got = stream.acquire(order[static_cast<size_t>(step) % order.size()]);
    ASSERT_TRUE(got.ok()) << got.status().message();
    in_use.push_back(*got);
    is_right(step, *got);
  }
}

TEST_F(BlockStreams, GiveEachBlockInTheOrderGivenBeforehand) {
  std::mt19937_64 random(3);
  for (const int slots : {2, 3, 5}) {
    const std::vector<Block> blocks = drawn(random, 6);
    std::vector<int> drawn_order(17);
    for (int& index : drawn_order) index = static_cast<int>(random() % blocks.size());
    for (const std::vector<int>& order :
         {std::vector<int>{0, 1, 2, 3, 4, 5}, {0, 1, 2, 3, 4, 5, 4, 3, 2, 1}, {2}, drawn_order}) {
      auto stream = BlockStream::open(blocks, order, {.slots = slots});
      ASSERT_TRUE(stream.ok()) << stream.status().message();
      int64_t largest = 1, bytes = 0;
      for (const int index : order) {
        int64_t pages = 0;
        for (const Piece& piece : blocks[static_cast<size_t>(index)].pieces)
          pages += (piece.offset + piece.bytes + 4095) / 4096 - piece.offset / 4096;
        largest = std::max(largest, pages);
      }
      EXPECT_EQ((*stream)->memory_bytes(), slots * largest * 4096);
      const int steps = static_cast<int>(2 * order.size() + 3);
      walk(**stream, blocks, order, steps, slots - 1);
      for (int step = 0; step < steps; ++step)
        for (const Piece& piece : blocks[static_cast<size_t>(order[static_cast<size_t>(step) % order.size()])].pieces)
          bytes += piece.bytes;
      EXPECT_EQ((*stream)->stats().blocks, steps);
      EXPECT_EQ((*stream)->stats().bytes, bytes);
      EXPECT_LE((*stream)->stats().waits, steps);
    }
  }
}

TEST_F(BlockStreams, BearABadDisk) {
  std::mt19937_64 random(4);
  const std::vector<Block> blocks = drawn(random, 5);
  const std::vector<int> order = {0, 1, 2, 3, 4, 3, 2, 1};
  io::FaultCounts counts;
  BlockStreamOptions options{.slots = 3};
  options.engine.wrap =
      io::with_faults({.seed = 9, .short_moves = 0.3, .eagain = 0.2, .late = 0.2, .reorder = true}, &counts);
  auto stream = BlockStream::open(blocks, order, options);
  ASSERT_TRUE(stream.ok()) << stream.status().message();
  walk(**stream, blocks, order, 80, 2);
  stream->reset();
  EXPECT_GT(counts.short_moves + counts.eagain + counts.late, 20);
}

TEST_F(BlockStreams, RefuseWhatCannotBe) {
  const auto refusal = [&](std::vector<Block> blocks, std::vector<int> order, BlockStreamOptions options = {}) {
    auto stream = BlockStream::open(std::move(blocks), std::move(order), std::move(options));
    return stream.ok() ? std::string()
                       : base::format("{}: {}", errc_name(stream.status().code()), stream.status().message());
  };
  const Block whole = block("embed", {{0, kFileBytes}}), small = block("norm", {{5000, 10}});
  EXPECT_EQ(refusal({small}, {0}, {.slots = 1}), "invalid_argument: block stream: slots is 1, wanted 2 or more");
  EXPECT_EQ(refusal({small}, {}), "invalid_argument: block stream: the order is empty, wanted one block or more");
  EXPECT_EQ(refusal({small}, {0, 1}), "invalid_argument: block stream: the order has block 1, wanted 0 to 0");
  EXPECT_EQ(refusal({small}, {-1}), "invalid_argument: block stream: the order has block -1, wanted 0 to 0");
  EXPECT_EQ(refusal({small, whole}, {0, 1}, {.slot_bytes = 1 << 20}),
            "invalid_argument: block stream: block embed takes 2101248 bytes in whole pages, a slot has 1048576");
  EXPECT_EQ(refusal({block("norm", {{-1, 4}})}, {0}),
            "invalid_argument: block stream: block norm has 4 bytes at -1 of " + scratch_.path("data") +
                ", wanted no negative number");
  EXPECT_EQ(refusal({block("norm", {{kFileBytes - 3, 4}})}, {0}),
            "corrupt: block stream: " + scratch_.path("data") + " has 2097929 bytes, block norm wants 4 at 2097926");
  EXPECT_EQ(refusal({{"norm", {{nullptr, 0, 4, {}}}}}, {0}),
            "invalid_argument: block stream: block norm has a piece with no source, wanted a file or what fills it");
  const auto fill = [](std::span<std::byte>) { return base::Status(); };
  EXPECT_EQ(refusal({{"norm", {{file_, 0, 4, fill}}}}, {0}),
            "invalid_argument: block stream: block norm has a piece with two sources, wanted a file or what fills it");
}

TEST_F(BlockStreams, FillMemoryThatIsGiven) {
  std::vector<Block> blocks;
  for (int b = 0; b < 3; ++b) {
    const auto fill = [b](std::span<std::byte> to) {
      std::fill(to.begin(), to.end(), static_cast<std::byte>(b + 1));
      return base::Status();
    };
    blocks.push_back({"b" + std::to_string(b), {{nullptr, 0, 5000, fill}}});
  }
  std::vector<std::byte> memory(2 * 8192 + 7, std::byte{99});
  auto opened = BlockStream::open(blocks, {0, 1, 2}, {.slots = 2, .memory = memory});
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  EXPECT_EQ((*opened)->memory().data(), memory.data());
  EXPECT_EQ((*opened)->memory_bytes(), 2 * 8192);
  for (int step = 0; step < 7; ++step) {
    const auto pieces = (*opened)->acquire(step % 3);
    ASSERT_TRUE(pieces.ok()) << pieces.status().message();
    EXPECT_EQ(pieces->front().data(), memory.data() + step % 2 * 8192);
    EXPECT_EQ(std::count(pieces->front().begin(), pieces->front().end(), static_cast<std::byte>(step % 3 + 1)), 5000);
    ASSERT_TRUE((*opened)->release(step % 3).ok());
  }
  opened->reset();
  EXPECT_EQ(memory.back(), std::byte{99});
  const auto refusal = [&](std::vector<Block> of, size_t bytes) {
    return BlockStream::open(std::move(of), {0}, {.slots = 2, .memory = std::span(memory).first(bytes)})
        .status()
        .message();
  };
  EXPECT_EQ(refusal(blocks, 16383), "block stream: memory has 16383 bytes, wanted 16384 for 2 slots");
  EXPECT_EQ(refusal({block("a", {{0, 9}})}, 16384),
            "block stream: block a has a piece of " + scratch_.path("data") + ", wanted what fills the memory given");
}

TEST_F(BlockStreams, SayWhoIsOutOfTurn) {
  auto opened = BlockStream::open({block("a", {{0, 9}}), block("b", {{9, 9}})}, {0, 1});
  ASSERT_TRUE(opened.ok());
  BlockStream& stream = **opened;
  const auto desync = [](const base::Status& status) {
    EXPECT_EQ(status.code(), Errc::desync);
    return status.message();
  };
  EXPECT_EQ(desync(stream.acquire(1).status()), "block stream: block b was asked for, wanted a, the next of the order");
  EXPECT_EQ(desync(stream.acquire(7).status()), "block stream: block 7 was asked for, wanted a, the next of the order");
  EXPECT_EQ(desync(stream.release(0)), "block stream: block a was released, wanted none: none is in use");
  ASSERT_TRUE(stream.acquire(0).ok());
  ASSERT_TRUE(stream.acquire(1).ok());
  EXPECT_EQ(desync(stream.acquire(0).status()),
            "block stream: block a was asked for while all 2 slots are in use; wanted a released");
  EXPECT_EQ(desync(stream.release(1)), "block stream: block b was released, wanted a");
  ASSERT_TRUE(stream.release(0).ok());
  ASSERT_TRUE(stream.acquire(0).ok()) << "it goes on where it was";
}

TEST_F(BlockStreams, GiveAReadsErrorWithItsBlock) {
  BlockStreamOptions options;
  options.engine.wrap = io::with_faults({.seed = 1, .eio = 1});
  auto stream = BlockStream::open({block("layers.7", {{4096, 8192}})}, {0}, options);
  ASSERT_TRUE(stream.ok()) << stream.status().message();
  const auto got = (*stream)->acquire(0);
  ASSERT_FALSE(got.ok());
  EXPECT_EQ(got.status().code(), Errc::io);
  EXPECT_TRUE(got.status().message().starts_with("block stream: block layers.7: " + scratch_.path("data")))
      << got.status().message();
}

}  // namespace
}  // namespace overlace::offload
