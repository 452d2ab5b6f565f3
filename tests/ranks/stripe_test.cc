// Striped ranges: one range of addresses, parts in the memory of several ranks.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "src/runtime/state.h"
#include "tests/ranks/support/run_ranks.h"

namespace overlace::test {
namespace {

constexpr size_t kPage = 4096;

template <class Exception, class Function>
std::string refusal(Function function) {
  try {
    function();
  } catch (const Exception& error) {
    return error.what();
  } catch (const std::exception& error) {
    return std::string("another exception: ") + error.what();
  }
  return "nothing was thrown";
}

uint64_t value(int rank, size_t i) { return (static_cast<uint64_t>(rank) + 1) << 40 | i; }

/// The range of a rank: a shard per rank, starting behind its own; sizes differ, a rank owns two parts of some.
std::vector<StripePart> shards(int rank, int n) {
  std::vector<StripePart> parts;
  for (int step = 1; step <= n; ++step) {
    const int owner = (rank + step) % n;
    parts.push_back({owner, kPage * static_cast<size_t>(1 + owner + rank)});
  }
  if (rank % 2 == 1) parts.push_back({0, kPage});
  return parts;
}

size_t mappings() {
  std::ifstream maps("/proc/self/maps");
  size_t count = 0;
  for (std::string line; std::getline(maps, line);) count += line.find("overlace-stripe") != std::string::npos;
  return count;
}

class StripeTest : public testing::TestWithParam<std::tuple<int, Mode>> {};

TEST_P(StripeTest, PlainStoresIntoTheRangeLandAtTheOwners) {
  const auto [n, mode] = GetParam();
  run_ranks(n, mode, [n = n](Runtime& runtime) {
    Team& team = runtime.world();
    ASSERT_EQ(runtime.heap().stripe_granule(), kPage);
    const int me = team.rank();
    for (int round = 0; round < 3; ++round) {
      const std::vector<StripePart> mine = shards(me, n);
      const StripedRange range = runtime.heap().stripe(mine, "c");
      ASSERT_EQ(range.parts().size(), mine.size());
      auto* words = static_cast<uint64_t*>(range.data());
      const size_t count = range.bytes() / sizeof(uint64_t);
      ASSERT_EQ(std::count(words, words + count, uint64_t{0}), static_cast<std::ptrdiff_t>(count)) << "fresh pages";
      team.barrier();
      for (size_t i = 0; i < count; ++i) words[i] = value(me, i);  // knows nothing of parts
      team.barrier();
      // What all ranks stored, as its owner sees it.
      size_t owned = 0;
      for (int from = 0; from < n; ++from) {
        const std::vector<StripePart> parts = shards(from, n);
        size_t first = 0;
        for (size_t p = 0; p < parts.size(); first += parts[p++].bytes / sizeof(uint64_t)) {
          if (parts[p].rank != me) continue;
          const StripePiece& piece = range.owned()[owned++];
          ASSERT_EQ(piece.rank, from);
          ASSERT_EQ(piece.part, static_cast<int>(p));
          ASSERT_EQ(piece.bytes, parts[p].bytes);
          for (size_t i = 0; i < piece.bytes / sizeof(uint64_t); ++i)
            ASSERT_EQ(static_cast<const uint64_t*>(piece.data)[i], value(from, first + i)) << from << " " << p;
        }
      }
      ASSERT_EQ(owned, range.owned().size());
      team.barrier();
      // The other direction: the owner stores, the rank reads in its range.
      for (const StripePiece& piece : range.owned())
        std::fill_n(static_cast<uint64_t*>(piece.data), piece.bytes / 8, value(me, static_cast<size_t>(piece.part)));
      team.barrier();
      for (const StripePiece& part : range.parts())
        for (size_t i = 0; i < part.bytes / 8; ++i)
          ASSERT_EQ(static_cast<uint64_t*>(part.data)[i], value(part.rank, static_cast<size_t>(part.part)));
      if (round < 2) runtime.heap().free(range);  // the last goes at close
    }
  });
}

TEST_P(StripeTest, NothingStaysMapped) {
  const auto [n, mode] = GetParam();
  const size_t before = mappings();
  run_ranks(n, mode, [n = n, before](Runtime& runtime) {
    const StripedRange range = runtime.heap().stripe(shards(runtime.world().rank(), n), "c");
    EXPECT_GT(mappings(), before);
    runtime.heap().free(range);
    runtime.world().barrier();
    // Threads let the last of them unmap, which may be another one than this.
    for (int i = 0; i < 2000 && mappings() > before; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_EQ(mappings(), before);
    EXPECT_EQ(refusal<InvalidArgument>([&] { runtime.heap().free(range); }),
              "heap.free: the striped range is not one of this runtime, or was freed before");
    runtime.world().barrier();
    (void)runtime.heap().stripe(shards(runtime.world().rank(), n), "d");
  });
  EXPECT_EQ(mappings(), before);
}

INSTANTIATE_TEST_SUITE_P(Ranks, StripeTest,
                         testing::Combine(testing::Values(1, 2, 4, 9), testing::ValuesIn(all_modes())), mode_test_name);

class StripeErrorTest : public testing::TestWithParam<Mode> {};

TEST_P(StripeErrorTest, WrongPartsAreNamedOnAllRanks) {
  run_ranks(2, GetParam(), [](Runtime& runtime) {
    const bool is_first = runtime.world().rank() == 0;
    const std::string other = is_first ? "rank 1: " : "";
    const auto refused = [&](const std::vector<StripePart>& bad) {
      const std::vector<StripePart> good = {{0, kPage}, {1, kPage}};
      return refusal<InvalidArgument>([&] { (void)runtime.heap().stripe(is_first ? good : bad, "c"); });
    };
    EXPECT_EQ(refused({{0, kPage}, {1, 100}}),
              other + "heap.stripe \"c\": part 1 has 100 bytes, wanted a multiple of 4096");
    EXPECT_EQ(refused({{0, 0}}), other + "heap.stripe \"c\": part 0 has 0 bytes, wanted a multiple of 4096");
    EXPECT_EQ(refused({{2, kPage}}), other + "heap.stripe \"c\": part 0 is for rank 2, wanted 0 to 1");
    EXPECT_EQ(refused({}), other + "heap.stripe \"c\": 0 parts, wanted 1 to 2048");
    // More than the machine has: nobody gets any.
    const std::vector<StripePart> huge = {{1, size_t{1} << 46}};
    const std::string what = refusal<OutOfMemory>([&] { (void)runtime.heap().stripe(huge, "c"); });
    EXPECT_NE(what.find("heap.stripe \"c\": "), std::string::npos) << what;
    EXPECT_NE(what.find("140737488355328 bytes of all ranks do not fit into "), std::string::npos) << what;
    // And all is well afterwards.
    const std::vector<StripePart> good = {{0, kPage}, {1, kPage}};
    runtime.heap().free(runtime.heap().stripe(good, "c"));
  });
}

/// A rank that never comes is a timeout, not a hang.
TEST_P(StripeErrorTest, AMissingRankEndsAtTheDeadline) {
  RankOptions options;
  options.timeout_ms = 1000;
  options.checks_end = false;
  run_ranks(
      2, GetParam(),
      [](Runtime& runtime) {
        const std::vector<StripePart> parts = {{0, kPage}};
        if (runtime.world().rank() == 0) {
          const std::string what = refusal<Timeout>([&] { (void)runtime.heap().stripe(parts, "c"); });
          EXPECT_NE(what.find("heap.stripe \"c\""), std::string::npos) << what;
          return;
        }
        // Stays, without a deadline of its own, until rank 0 has given up.
        std::string what = "nothing was thrown";
        for (int i = 0; i < 2000 && what == "nothing was thrown"; ++i) {
          std::this_thread::sleep_for(std::chrono::milliseconds(5));
          what = refusal<PeerLost>([&] { runtime.check(); });
        }
        EXPECT_NE(what.find("heap.stripe \"c\""), std::string::npos) << what;
      },
      options);
}

INSTANTIATE_TEST_SUITE_P(Modes, StripeErrorTest, testing::ValuesIn(all_modes()),
                         [](const auto& test) { return mode_name(test.param); });

}  // namespace
}  // namespace overlace::test
