#include "src/exec/cpu/scratch.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace overlace::exec {
namespace {

TEST(Scratch, ProgramsShareTheLargestBlock) {
  Scratch scratch;
  void* const large = scratch.take(1000);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(large) % 64, 0u);
  EXPECT_EQ(scratch.take(10), large);
  EXPECT_EQ(scratch.take(1000), large);
  EXPECT_EQ(scratch.bytes(), 1000u);
}

TEST(Scratch, ALargerBlockIsTwiceAsLargeAndTheOldOneGoesWithItsLastUser) {
  Scratch scratch;
  void* const first = scratch.take(1000);
  EXPECT_EQ(scratch.take(1000), first);
  void* const second = scratch.take(1001);
  EXPECT_NE(second, first);
  EXPECT_EQ(scratch.bytes(), 3000u);
  scratch.give_back(first);
  EXPECT_EQ(scratch.bytes(), 3000u);
  scratch.give_back(first);
  EXPECT_EQ(scratch.bytes(), 2000u);
  scratch.give_back(second);
  EXPECT_EQ(scratch.bytes(), 2000u) << "the last one stays";
  EXPECT_EQ(scratch.take(2000), second);
}

TEST(Scratch, RisingSizesTakeNoMoreThanFourTimesTheLargest) {
  Scratch scratch;
  for (size_t bytes = 1; bytes <= 5000; ++bytes) scratch.take(bytes);
  EXPECT_LT(scratch.bytes(), 4u * 5000);
}

TEST(Scratch, AnUnusedSmallerBlockIsReplaced) {
  Scratch scratch;
  scratch.give_back(scratch.take(100));
  scratch.take(5000);
  EXPECT_EQ(scratch.bytes(), 5000u);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they end the process where memory runs out
TEST(Scratch, NoMemoryIsNullAndChangesNothing) {
  Scratch scratch;
  void* const memory = scratch.take(64);
  EXPECT_EQ(scratch.take(size_t{1} << 60), nullptr);
  EXPECT_EQ(scratch.bytes(), 64u);
  EXPECT_EQ(scratch.take(64), memory);
}
#endif

}  // namespace
}  // namespace overlace::exec
