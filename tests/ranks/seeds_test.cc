// How many seeds the adversary of the rank tests gets, and that a failure names the one that replays it.
#include "tests/ranks/support/seeds.h"

#include <unistd.h>

#include <array>
#include <cstdio>
#include <mutex>
#include <set>
#include <string>

#include "src/base/env.h"
#include "tests/ranks/support/run_ranks.h"

namespace overlace::test {
namespace {

TEST(Seeds, TextsAndWhatIsRefused) {
  EXPECT_EQ(parse_seeds("").count, 1);
  EXPECT_EQ(parse_seeds("20").count, 20);
  EXPECT_EQ(parse_seeds("1000@7").first, 7u);
  EXPECT_EQ(parse_seeds("1000@7").count, 1000);
  for (const char* bad : {"0", "x", "20@", "20@x", "-1", "20 ", "@3", "1,2"}) {
    try {
      (void)parse_seeds(bad);
      ADD_FAILURE() << bad << " was taken";
    } catch (const InvalidArgument& error) {
      EXPECT_EQ(std::string(error.what()),
                "OVERLACE_TEST_SEEDS is \"" + std::string(bad) + "\", wanted COUNT or COUNT@FIRST");
    }
  }
}

/// Seeds with which a body ran.
std::multiset<uint64_t> seeds_of(Mode mode, const RankOptions& options) {
  std::mutex mutex;
  std::multiset<uint64_t> seen;
  run_ranks(
      2, mode,
      [&](Runtime& runtime) {
        const std::lock_guard lock(mutex);
        if (runtime.world().rank() == 0) seen.insert(runtime.options().adversary.seed);
      },
      options);
  return seen;
}

TEST(Seeds, EachRunOfABodyHasItsOwn) {
  if (!base::env().adversary.empty()) GTEST_SKIP() << "one seed is replayed";
  const std::multiset<uint64_t> seen = seeds_of(Mode::threads_adversary, {.min_seeds = 5, .max_seeds = 8});
  EXPECT_GE(seen.size(), 5u);
  EXPECT_LE(seen.size(), 8u);
  EXPECT_EQ(std::set<uint64_t>(seen.begin(), seen.end()).size(), seen.size()) << "a seed came twice";
  EXPECT_EQ(seeds_of(Mode::threads, {.min_seeds = 5}).size(), 1u) << "without an adversary nothing is drawn";
  RankOptions given;
  given.min_seeds = 5;
  given.adversary = AdversaryOptions::parse("seed=77");
  EXPECT_EQ(seeds_of(Mode::threads_adversary, given), (std::multiset<uint64_t>{77}));
}

/// Not for others: fails with seed 42.
TEST(SeedsFailure, DISABLED_Of42) {
  run_ranks(1, Mode::threads_adversary, [](Runtime& runtime) {
    std::printf("seed %d\n", static_cast<int>(runtime.options().adversary.seed));
    EXPECT_NE(runtime.options().adversary.seed, 42u);
  });
}

/// Output of the test above with a variable set; its status at the end.
std::string output_of(const std::string& variable) {
  std::string text;
  const std::string command = variable + " /proc/" + std::to_string(::getpid()) +
                              "/exe --gtest_also_run_disabled_tests --gtest_filter=SeedsFailure.* 2>&1; echo status $?";
  FILE* const pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return "";
  std::array<char, 4096> buffer{};
  for (size_t got = 0; (got = ::fread(buffer.data(), 1, buffer.size(), pipe)) != 0;) text.append(buffer.data(), got);
  ::pclose(pipe);
  return text;
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(Seeds, AFailureNamesItsSeedAndEndsTheSeriesAndIsReplayed) {
  const std::string series = output_of("env -u OVERLACE_ADVERSARY OVERLACE_TEST_SEEDS=6@40");
  EXPECT_TRUE(has(series, "seed 40\n") && has(series, "seed 41\n") && has(series, "seed 42\n")) << series;
  EXPECT_FALSE(has(series, "seed 43\n")) << series;
  EXPECT_TRUE(has(series, "OVERLACE_ADVERSARY=\"seed=42\"") && has(series, "status 1")) << series;
  const std::string replay = output_of("OVERLACE_ADVERSARY=seed=42 OVERLACE_TEST_SEEDS=6@40");
  EXPECT_TRUE(has(replay, "seed 42\n") && has(replay, "status 1") && !has(replay, "seed 40\n")) << replay;
  EXPECT_TRUE(has(output_of("OVERLACE_ADVERSARY=seed=41"), "status 0"));
}

}  // namespace
}  // namespace overlace::test
