// Which parameters travel together.
#include "src/train/co2/buckets.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace overlace::train {

void PrintTo(const BucketRange& range, std::ostream* out) {
  *out << "{" << range.first << ", " << range.tensors << ", " << range.begin << ", " << range.count << "}";
}
bool operator==(const BucketRange& a, const BucketRange& b) {
  return a.first == b.first && a.tensors == b.tensors && a.begin == b.begin && a.count == b.count;
}

namespace {

using Ranges = std::vector<BucketRange>;

TEST(Co2Buckets, EndAtEdgesOfParameters) {
  const std::vector<int64_t> counts = {3, 4, 5, 1};
  EXPECT_EQ(make_buckets(counts, 8), (Ranges{{0, 2, 0, 7}, {2, 2, 7, 6}}));
  EXPECT_EQ(make_buckets(counts, 13), (Ranges{{0, 4, 0, 13}}));
  EXPECT_EQ(make_buckets(counts, 1), (Ranges{{0, 1, 0, 3}, {1, 1, 3, 4}, {2, 1, 7, 5}, {3, 1, 12, 1}}));
}

TEST(Co2Buckets, FragmentsAreNeighboursOfAboutTheSameSize) {
  const std::vector<int64_t> counts = {10, 10, 10, 10, 5, 5, 10};
  EXPECT_EQ(fragments_of(make_buckets(counts, 10), 3), (std::vector<int>{0, 0, 1, 1, 2, 2}));
  EXPECT_EQ(fragments_of(make_buckets(counts, 10), 1), (std::vector<int>(6)));
  // A bucket that is larger than a fragment leaves one without any.
  EXPECT_EQ(fragments_of(make_buckets(std::vector<int64_t>{1, 100, 1}, 30), 3), (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(fragments_of(make_buckets(std::vector<int64_t>{100, 1, 1}, 30), 3), (std::vector<int>{1, 2}));
  EXPECT_TRUE(fragments_of({}, 3).empty());
}

TEST(Co2Buckets, ALargeParameterHasOneOfItsOwn) {
  const std::vector<int64_t> counts = {2, 100, 2};
  EXPECT_EQ(make_buckets(counts, 10), (Ranges{{0, 1, 0, 2}, {1, 1, 2, 100}, {2, 1, 102, 2}}));
}

TEST(Co2Buckets, EmptyShardsJoinTheirNeighbours) {
  EXPECT_EQ(make_buckets(std::vector<int64_t>{0, 4, 0, 4, 0}, 4), (Ranges{{0, 3, 0, 4}, {3, 2, 4, 4}}));
  EXPECT_EQ(make_buckets(std::vector<int64_t>{0, 0, 5}, 4), (Ranges{{0, 3, 0, 5}}));
  EXPECT_TRUE(make_buckets(std::vector<int64_t>{0, 0}, 4).empty());
  EXPECT_TRUE(make_buckets({}, 4).empty());
}

TEST(Co2Buckets, HoldEverythingOnceInOrder) {
  std::mt19937 draw(5);
  for (int n = 0; n < 300; ++n) {
    std::vector<int64_t> counts(draw() % 20);
    int64_t total = 0;
    for (int64_t& count : counts) total += count = draw() % 3 == 0 ? 0 : static_cast<int64_t>(draw() % 50);
    const int64_t room = 1 + static_cast<int64_t>(draw() % 60);
    size_t next = 0;
    int64_t begin = 0;
    for (const BucketRange& range : make_buckets(counts, room)) {
      ASSERT_EQ(range.first, next);
      ASSERT_EQ(range.begin, begin);
      int64_t count = 0, filled = 0;
      for (size_t i = 0; i < range.tensors; ++i) {
        count += counts[range.first + i];
        filled += counts[range.first + i] > 0 ? 1 : 0;
      }
      ASSERT_EQ(range.count, count);
      ASSERT_GT(count, 0);
      ASSERT_TRUE(count <= room || filled == 1);
      next += range.tensors;
      begin += count;
    }
    ASSERT_EQ(begin, total);
    ASSERT_TRUE(total == 0 || next == counts.size());
  }
}

}  // namespace
}  // namespace overlace::train
