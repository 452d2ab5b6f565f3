// The protocol of the benches with made-up competitors and a made-up clock.
#include "bench/common/protocol.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "src/base/statistics.h"

namespace overlace::bench {
namespace {

/// A clock that only calls move.
class FakeCrew final : public Crew {
 public:
  base::Status synchronize() override { return {}; }
  base::Status barrier() override {
    ++barriers;
    return {};
  }
  base::Result<double> max_over_ranks(double mine) override { return mine; }
  base::Status record_begin() override {
    begin_us_ = us;
    return {};
  }
  base::Status record_end() override { return {}; }
  base::Result<double> elapsed_us() override { return us - begin_us_; }
  ClockSample clocks() override {
    ClockSample sample;
    sample.ok = true;
    sample.sm_mhz = mhz.size() > 1 ? mhz.back() : 1500;
    if (mhz.size() > 1) mhz.pop_back();
    return sample;
  }
  double now_s() override { return us * 1e-6; }

  double us = 0;
  int barriers = 0;
  std::vector<double> mhz;

 private:
  double begin_us_ = 0;
};

/// Entrant i takes costs[i] us per call; wrong[i] is what verification says of it, from call `from` on.
class FakeSubject final : public Subject {
 public:
  FakeSubject(FakeCrew& crew, std::vector<double> costs) : crew_(crew), costs_(std::move(costs)) {}
  base::Status enqueue(size_t which, int turn) override {
    crew_.us += costs_[which];
    last_turn = std::max(last_turn, turn);
    ++calls[which];
    return failure;
  }
  base::Result<std::string> verify(size_t which, Check* check) override {
    check->sampled = 1;
    if (which == not_supported) return base::error(Errc::not_supported, "no such engine");
    return std::string(++verified[which] >= wrong_from[which] ? "made up" : "");
  }

  int calls[3] = {}, verified[3] = {}, wrong_from[3] = {99, 99, 99};
  int last_turn = 0;
  size_t not_supported = 99;
  base::Status failure;

 private:
  FakeCrew& crew_;
  std::vector<double> costs_;
};

ProtocolOptions quick() {
  ProtocolOptions options;
  options.repetitions = 5;
  options.burst_ms = 10;
  options.warm_s = 0.01;
  options.settle_s = 1;
  return options;
}

TEST(Protocol, TimesWhatIsRight) {
  FakeCrew crew;
  FakeSubject subject(crew, {100, 250});
  std::vector<Entrant> entrants = {Entrant{"a"}, Entrant{"b"}};
  const auto outcome = run_case(&entrants, subject, crew, quick());
  ASSERT_TRUE(outcome.ok()) << outcome.status().message();
  EXPECT_EQ(outcome->wrong, 0);
  EXPECT_FALSE(outcome->unsettled);
  ASSERT_EQ(entrants[0].samples_us.size(), 5u);
  EXPECT_NEAR(base::median(entrants[0].samples_us), 100, 1e-6);
  EXPECT_NEAR(base::median(entrants[1].samples_us), 250, 1e-6);
  EXPECT_EQ(entrants[0].calls, 100);  // 10 ms
  EXPECT_EQ(entrants[1].calls, 40);
  EXPECT_EQ(subject.verified[0], 2);  // before and after
  EXPECT_GT(subject.last_turn, 100) << "operand sets are not rotated";
}

TEST(Protocol, NeverTimesWhatIsWrong) {
  FakeCrew crew;
  FakeSubject subject(crew, {100, 100, 100});
  subject.wrong_from[1] = 1;
  std::vector<Entrant> entrants = {Entrant{"a"}, Entrant{"wrong"}, Entrant{"c"}};
  const auto outcome = run_case(&entrants, subject, crew, quick());
  ASSERT_TRUE(outcome.ok());
  EXPECT_EQ(outcome->wrong, 1);
  EXPECT_EQ(entrants[1].status, "wrong");
  EXPECT_EQ(entrants[1].reason, "made up");
  EXPECT_FALSE(entrants[1].is_timed());
  EXPECT_EQ(subject.calls[1], 0);
  EXPECT_TRUE(entrants[2].is_timed());
}

TEST(Protocol, TakesBackWhatIsWrongAfterwards) {
  FakeCrew crew;
  FakeSubject subject(crew, {100, 100});
  subject.wrong_from[0] = 2;
  std::vector<Entrant> entrants = {Entrant{"stale"}, Entrant{"b"}};
  const auto outcome = run_case(&entrants, subject, crew, quick());
  ASSERT_TRUE(outcome.ok());
  EXPECT_EQ(outcome->wrong, 1);
  EXPECT_GT(subject.calls[0], 100);
  EXPECT_FALSE(entrants[0].is_timed());
  EXPECT_TRUE(entrants[1].is_timed());
}

TEST(Protocol, VerifyOnlyTimesNothing) {
  FakeCrew crew;
  FakeSubject subject(crew, {100, 100});
  ProtocolOptions options = quick();
  options.verify_only = true;
  std::vector<Entrant> entrants = {Entrant{"a"}, Entrant{"part"}};
  entrants[1].has_output = false;
  ASSERT_TRUE(run_case(&entrants, subject, crew, options).ok());
  EXPECT_EQ(subject.calls[0], 0);
  EXPECT_EQ(subject.calls[1], 1);  // it runs at least
  EXPECT_FALSE(entrants[0].is_timed());
}

TEST(Protocol, LeavesOutWhatIsNotThereAndEndsAtFailures) {
  FakeCrew crew;
  FakeSubject subject(crew, {100, 100});
  subject.not_supported = 1;
  std::vector<Entrant> entrants = {Entrant{"a"}, Entrant{"b"}};
  const auto outcome = run_case(&entrants, subject, crew, quick());
  ASSERT_TRUE(outcome.ok());
  EXPECT_EQ(outcome->wrong, 0);
  EXPECT_EQ(entrants[1].status, "unsupported");
  EXPECT_EQ(entrants[1].reason, "no such engine");
  subject.failure = base::error(Errc::timeout, "waited for rank 1");
  entrants = {Entrant{"a"}};
  EXPECT_EQ(run_case(&entrants, subject, crew, quick()).status().code(), Errc::timeout);
}

TEST(Protocol, WarmsUpUntilTheClockSettles) {
  FakeCrew settles, wanders;
  // Read from the back: falling clocks, then steady ones.
  settles.mhz = {1400, 1400, 1402, 1405, 1500, 1700, 1900};
  for (int i = 0; i < 100000; ++i) wanders.mhz.push_back(i % 2 == 0 ? 1400 : 1700);
  for (FakeCrew* crew : {&settles, &wanders}) {
    FakeSubject subject(*crew, {100});
    std::vector<Entrant> entrants = {Entrant{"a"}};
    const auto outcome = run_case(&entrants, subject, *crew, quick());
    ASSERT_TRUE(outcome.ok());
    EXPECT_EQ(outcome->unsettled, crew == &wanders);
  }
}

}  // namespace
}  // namespace overlace::bench
