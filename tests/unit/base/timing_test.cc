#include "src/base/timing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <thread>
#include <utility>

namespace overlace::base {
namespace {

TEST(BurstOrder, IsThatOfThePythonTwin) {
  const std::vector<size_t> want = {3, 4, 5, 0, 1, 2};  // tests/bench/driver_test.py
  EXPECT_EQ(burst_order(6, 0, 1), want);
  EXPECT_EQ(burst_order(6, 1, 1), std::vector<size_t>(want.rbegin(), want.rend()));
  EXPECT_EQ(burst_order(6, 2, 1), (std::vector<size_t>{0, 3, 1, 4, 5, 2}));
}

TEST(BurstOrder, IsAPermutationThatPairsReverse) {
  EXPECT_TRUE(burst_order(0, 0, 1).empty());
  for (int repetition = 0; repetition < 20; repetition += 2) {
    const auto order = burst_order(6, repetition, 42);
    EXPECT_EQ(std::set<size_t>(order.begin(), order.end()).size(), 6u);
    auto reversed = burst_order(6, repetition + 1, 42);
    std::reverse(reversed.begin(), reversed.end());
    EXPECT_EQ(order, reversed);
  }
}

TEST(BurstOrder, DependsOnTheSeedAndOnTheRepetition) {
  std::set<std::vector<size_t>> by_repetition, by_seed;
  for (int i = 0; i < 20; ++i) {
    by_repetition.insert(burst_order(6, 2 * i, 1));
    by_seed.insert(burst_order(6, 0, static_cast<uint64_t>(i)));
  }
  EXPECT_GT(by_repetition.size(), 10u);
  EXPECT_GT(by_seed.size(), 10u);
  EXPECT_EQ(burst_order(6, 3, 7), burst_order(6, 3, 7));
}

TEST(BurstCalls, FillTheBurstWithinTheirBounds) {
  EXPECT_DOUBLE_EQ(burst_calls(1000, 300, 1, 100), 1000.0 / 300);
  EXPECT_DOUBLE_EQ(burst_calls(1000, 3000, 2, 100), 2);
  EXPECT_DOUBLE_EQ(burst_calls(1000, 1, 2, 100), 100);
  EXPECT_DOUBLE_EQ(burst_calls(1000, 0, 2, 100), 100) << "a call that takes no time";
}

TEST(Interleave, RunsEachOnceARepetitionInThatOrder) {
  std::vector<std::pair<int, size_t>> seen, want;
  const auto note = [&](int repetition, size_t competitor) -> Status {
    seen.emplace_back(repetition, competitor);
    return {};
  };
  ASSERT_TRUE(interleave(3, 4, 9, note).ok());
  for (int repetition = 0; repetition < 4; ++repetition)
    for (const size_t i : burst_order(3, repetition, 9)) want.emplace_back(repetition, i);
  EXPECT_EQ(seen, want);
}

TEST(Interleave, EndsAtTheFirstError) {
  int bursts = 0;
  const Status status = interleave(3, 4, 9, [&](int, size_t) -> Status {
    return ++bursts == 5 ? error(Errc::timeout, "burst {}", bursts) : Status();
  });
  EXPECT_EQ(status.code(), Errc::timeout);
  EXPECT_EQ(bursts, 5);
}

TEST(SteadyClock, MeasuresWhatWorkTakes) {
  const double us = us_of([] { std::this_thread::sleep_for(std::chrono::milliseconds(3)); });
  EXPECT_GE(us, 3000);
  EXPECT_LT(us, 3e6);
  const double begin_s = steady_s();
  EXPECT_GE(steady_s(), begin_s);
}

}  // namespace
}  // namespace overlace::base
