#include "src/tuning/measure.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace overlace::tuning {
namespace {

using base::Result;
using base::Status;

/// A team whose clock moves only when a competitor runs; this rank is `behind` times slower than the others.
class FakeCrew : public Crew {
 public:
  Status synchronize() override { return ++synchronizations, Status(); }
  Status barrier() override { return ++barriers, Status(); }
  Result<std::vector<double>> max_over_ranks(const std::vector<double>& mine) override {
    ++exchanges;
    std::vector<double> out = mine;
    for (double& value : out) value *= slowest_rank;
    return out;
  }
  double now_us() override { return clock_us; }

  double clock_us = 0, slowest_rank = 1;
  int synchronizations = 0, barriers = 0, exchanges = 0;
};

Competitor takes(FakeCrew& crew, std::string name, double us, std::vector<int>* calls = nullptr) {
  return {std::move(name), [&crew, us, calls](int iterations) {
            crew.clock_us += us * iterations;
            if (calls != nullptr) calls->push_back(iterations);
            return Status();
          }};
}

TEST(Measure, ReportsTimePerIterationOfTheSlowestRank) {
  FakeCrew crew;
  crew.slowest_rank = 3;
  MeasureOptions options;
  options.repetitions = 5;
  options.burst_us = 1000;
  const auto timings = measure({takes(crew, "short", 10), takes(crew, "long", 250)}, crew, options);
  ASSERT_TRUE(timings.ok());
  ASSERT_EQ(timings->size(), 2u);
  EXPECT_EQ(timings->at(0).name, "short");
  EXPECT_DOUBLE_EQ(timings->at(0).median_us, 30);
  EXPECT_DOUBLE_EQ(timings->at(1).median_us, 750);
  EXPECT_EQ(timings->at(0).samples_us.size(), 5u);
  // Bursts are long enough as the slowest rank counts them: 1000 / 30 and 1000 / 750, rounded up.
  EXPECT_EQ(timings->at(0).iterations, 34);
  EXPECT_EQ(timings->at(1).iterations, 2);
}

TEST(Measure, TakesTheMedianOfRepetitions) {
  FakeCrew crew;
  int burst = 0;
  Competitor noisy{"noisy", [&](int iterations) {
                     // Three untimed calls come first; then one slow burst among seven.
                     crew.clock_us += (++burst == 7 ? 9000.0 : 100.0) * iterations;
                     return Status();
                   }};
  MeasureOptions options;
  options.repetitions = 7;
  options.burst_us = 1;
  const auto timings = measure({noisy}, crew, options);
  ASSERT_TRUE(timings.ok());
  EXPECT_DOUBLE_EQ(timings->front().median_us, 100);
  EXPECT_EQ(std::count(timings->front().samples_us.begin(), timings->front().samples_us.end(), 9000.0), 1);
}

TEST(Measure, KeepsIterationsWithinTheirLimits) {
  FakeCrew crew;
  MeasureOptions options;
  options.repetitions = 1;
  options.min_iterations = 3;
  options.max_iterations = 20;
  options.burst_us = 100;
  const auto timings = measure({takes(crew, "fast", 0.001), takes(crew, "slow", 1e6)}, crew, options);
  ASSERT_TRUE(timings.ok());
  EXPECT_EQ(timings->at(0).iterations, 20);
  EXPECT_EQ(timings->at(1).iterations, 3);
}

TEST(Measure, EveryBurstStartsFromABarrierAfterALeadIn) {
  FakeCrew crew;
  std::vector<int> calls;
  MeasureOptions options;
  options.repetitions = 2;
  options.burst_us = 100;
  const auto timings = measure({takes(crew, "a", 10, &calls)}, crew, options);
  ASSERT_TRUE(timings.ok());
  EXPECT_EQ(calls, (std::vector<int>{1, 1, 1, 2, 10, 2, 10}));
  EXPECT_EQ(crew.barriers, 4);
  EXPECT_EQ(crew.synchronizations, 8);
  EXPECT_EQ(crew.exchanges, 3);
}

TEST(Measure, StopsAtTheFirstFailure) {
  FakeCrew crew;
  int calls = 0;
  const Competitor broken{
      "broken", [&](int) { return ++calls < 3 ? Status() : Status(Errc::timeout, "rank 1 waited for rank 0"); }};
  const auto timings = measure({broken}, crew, {});
  ASSERT_FALSE(timings.ok());
  EXPECT_EQ(timings.status().code(), Errc::timeout);
  EXPECT_EQ(calls, 3);
}

TEST(Measure, WhatAnotherRankCannotRunFailsHereBeforeABarrier) {
  struct : FakeCrew {
    Result<std::vector<double>> max_over_ranks(const std::vector<double>& mine) override {
      return std::vector<double>(mine.size(), 1);
    }
  } crew;
  int calls = 0;
  const Competitor fine{"fine", [&](int) { return ++calls, Status(); }};
  const auto timings = measure({fine}, crew, {});
  EXPECT_EQ(timings.status().code(), Errc::peer_lost);
  EXPECT_EQ(timings.status().message(), "fine: another rank cannot run it");
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(crew.barriers, 0);
}

TEST(Measure, TellsHowFarItIs) {
  FakeCrew crew;
  std::vector<int> seen;
  MeasureOptions options;
  options.repetitions = 3;
  const auto timings = measure({takes(crew, "a", 10), takes(crew, "b", 10)}, crew, options, [&](int done, int total) {
    EXPECT_EQ(total, 6);
    seen.push_back(done);
  });
  ASSERT_TRUE(timings.ok());
  EXPECT_EQ(seen, (std::vector<int>{1, 2, 3, 4, 5, 6}));
}

}  // namespace
}  // namespace overlace::tuning
