#include "src/runtime/allocator.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace overlace::runtime {
namespace {

TEST(Allocator, TakesTheLowestPlaceThatFits) {
  Allocator a(4096, 4096 + 4096, 256);
  EXPECT_EQ(a.take(1, 1), 4096u);
  EXPECT_EQ(a.take(257, 1), 4096u + 256);
  EXPECT_EQ(a.take(256, 1), 4096u + 768);
  EXPECT_EQ(a.in_use(), 1024u);
  EXPECT_EQ(a.give_back(4096 + 256), 512u);
  EXPECT_EQ(a.take(513, 1), 4096u + 1024);  // the hole is too small
  EXPECT_EQ(a.take(512, 1), 4096u + 256);
}

TEST(Allocator, AlignsAndKeepsTheHole) {
  Allocator a(256, 65536, 256);
  EXPECT_EQ(a.take(100, 4096), 4096u);
  EXPECT_EQ(a.take(100, 256), 256u);
  EXPECT_EQ(a.take(62000, 256), std::nullopt);
  EXPECT_EQ(a.take(3584, 256), 512u);  // the rest of the hole
  EXPECT_EQ(a.largest_free(), 65536u - 4096 - 256);
}

TEST(Allocator, TakesNothingBelowTheLeastPlace) {
  Allocator a(0, 8192, 256);
  EXPECT_EQ(a.take(256, 1, 1000), 1024u);
  EXPECT_EQ(a.take(256, 1024, 1025), 2048u);
  EXPECT_EQ(a.take(256, 1), 0u);
  EXPECT_EQ(a.take(256, 1, 8192), std::nullopt);
  EXPECT_EQ(a.give_back(1024), 256u);
  EXPECT_EQ(a.largest_free(), 8192u - 2048 - 256);
}

TEST(Allocator, GrowsAtItsEnd) {
  Allocator a(0, 1024, 256);
  EXPECT_EQ(a.take(512, 1), 0u);
  EXPECT_EQ(a.take(1024, 1), std::nullopt);
  a.grow(1536);
  EXPECT_EQ(a.capacity(), 1536u);
  EXPECT_EQ(a.take(1024, 1), 512u);  // what was left and what came are one hole
  a.grow(2048);
  a.grow(1024);  // does not shrink
  EXPECT_EQ(a.capacity(), 2048u);
  EXPECT_EQ(a.take(512, 1), 1536u);
}

TEST(Allocator, RefusesForeignAndDoubleReturns) {
  Allocator a(0, 4096, 256);
  const auto block = a.take(512, 1);
  ASSERT_TRUE(block);
  EXPECT_EQ(a.give_back(*block + 256), std::nullopt);
  EXPECT_EQ(a.give_back(*block), 512u);
  EXPECT_EQ(a.give_back(*block), std::nullopt);
  EXPECT_EQ(a.largest_free(), 4096u);
}

TEST(Allocator, HugeSizesDoNotOverflow) {
  Allocator a(0, 4096, 256);
  EXPECT_EQ(a.take(~uint64_t{0}, 1), std::nullopt);
  EXPECT_EQ(a.take(4097, 1), std::nullopt);
  EXPECT_EQ(a.take(4096, uint64_t{1} << 21), 0u);
}

TEST(Allocator, RandomTracesNeverOverlapAndEndEmpty) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    std::mt19937_64 random(seed);
    constexpr uint64_t kBegin = 1 << 16, kEnd = kBegin + (1 << 20);
    Allocator a(kBegin, kEnd, 256);
    std::map<uint64_t, uint64_t> living;  // offset -> size asked
    for (int step = 0; step < 3000; ++step) {
      if (random() % 3 != 0 || living.empty()) {
        const uint64_t size = 1 + random() % 20000, align = uint64_t{1} << (random() % 15);
        const auto offset = a.take(size, align);
        if (!offset) {
          EXPECT_LT(a.largest_free(), size + align + 512) << "seed " << seed;
          continue;
        }
        ASSERT_EQ(*offset % align, 0u) << "seed " << seed;
        ASSERT_GE(*offset, kBegin);
        ASSERT_LE(*offset + size, kEnd);
        const auto next = living.lower_bound(*offset);
        if (next != living.end()) {
          ASSERT_LE(*offset + size, next->first) << "seed " << seed;
        }
        if (next != living.begin()) {
          ASSERT_GE(*offset, std::prev(next)->first + std::prev(next)->second) << "seed " << seed;
        }
        living[*offset] = size;
      } else {
        auto victim = std::next(living.begin(), static_cast<std::ptrdiff_t>(random() % living.size()));
        ASSERT_TRUE(a.give_back(victim->first));
        living.erase(victim);
      }
    }
    for (const auto& [offset, size] : living) ASSERT_TRUE(a.give_back(offset));
    EXPECT_EQ(a.in_use(), 0u);
    EXPECT_EQ(a.largest_free(), kEnd - kBegin) << "seed " << seed;
  }
}

}  // namespace
}  // namespace overlace::runtime
