// Training with local steps against closed forms, also those that plan tau, and properties.
#include "src/study/workload/co2.h"

#include <gtest/gtest.h>

#include "src/train/co2/timing.h"

namespace overlace::study {
namespace {

spec::Machine quiet_machine() {
  spec::Machine m = spec::find_machine("h200x4");
  m.contention.clear();
  return m;
}

/// Rounds of 12 steps of 100 us, a pass of 7.
Co2Run run_of(OuterRule rule, double all_reduce_us) {
  Co2Run run;
  run.rule = rule;
  run.step_us = 100;
  run.pass_us = 7;
  run.all_reduce_us = all_reduce_us;
  return run;
}
Co2Time co2(const Co2Run& run, int groups = 16) {
  return co2_training(run, quiet_machine(), rail_fat_tree(groups, 8, 10, 64, 1).value()).value();
}

TEST(Co2, RoundsAreTheClosedForms) {
  for (const double reduce : {50.0, 500.0, 1200.0, 3000.0}) {
    EXPECT_NEAR(co2(run_of(OuterRule::co2, reduce)).round_us, std::max(1200.0, reduce) + 7, 1e-3) << reduce;
    EXPECT_NEAR(co2(run_of(OuterRule::eager, reduce)).round_us, std::max(1200.0, reduce) + 7, 1e-3) << reduce;
    EXPECT_NEAR(co2(run_of(OuterRule::local_sgd, reduce)).round_us, 1200 + reduce + 7, 1e-3) << reduce;
    EXPECT_NEAR(co2(run_of(OuterRule::slow_mo, reduce)).round_us, 1200 + reduce + 7, 1e-3) << reduce;
    EXPECT_NEAR(co2(run_of(OuterRule::ddp, reduce)).round_us, 12 * (100 + reduce), 1e-3) << reduce;
  }
  // Four fragments, each with a pass where it is sent and one where it is worked in, a quarter of the bytes each.
  EXPECT_NEAR(co2(run_of(OuterRule::streaming, 200)).round_us, 1200 + 2 * 7, 1e-3);
  // 500 us for a quarter and one step to hide it: each fragment shows 400 less the pass before it was sent.
  EXPECT_NEAR(co2(run_of(OuterRule::streaming, 2000)).round_us, 4 * (300 + 400) + 2 * 7, 1e-3);
}

/// The closed form by which the library plans tau, which knows no algorithm but two shots and no task.
TEST(Co2, IsWhatTauIsPlannedBy) {
  for (const int groups : {2, 3, 8})
    for (const double step_us : {500.0, 3000.0, 100e3})
      for (const double pass_us : {0.0, 7.0})
        for (const int tau : {1, 3, 12}) {
          Co2Run run;
          run.per_group = 1;
          run.parameters = 2e6;
          run.step_us = step_us;
          run.pass_us = pass_us;
          run.period = tau;
          const Co2Time time = co2_training(run, {}, full_mesh(groups, {.GBps = 1, .alpha_us = 20}).value()).value();
          const double all_reduce_us = train::all_reduce_us({groups, 1000, 20}, 8e6);
          const train::RoundTime round = train::co2_round(tau, step_us, all_reduce_us, pass_us);
          const auto where = ::testing::Message() << groups << " groups, " << tau << " steps of " << step_us;
          EXPECT_NEAR(time.all_reduce_us, all_reduce_us, 1e-6) << where;
          EXPECT_NEAR(time.round_us, round.us, 1e-5) << where;
          EXPECT_NEAR(time.exposed_us(), round.exposed_us, 1e-5) << where;
        }
}

TEST(Co2, ExposedIsWhatTheStepsDoNotCover) {
  EXPECT_NEAR(co2(run_of(OuterRule::co2, 1100)).exposed_us(), 0, 1e-3);
  EXPECT_NEAR(co2(run_of(OuterRule::co2, 1500)).exposed_us(), 300, 1e-3);
  EXPECT_NEAR(co2(run_of(OuterRule::local_sgd, 1500)).exposed_us(), 1500, 1e-3);
  EXPECT_NEAR(co2(run_of(OuterRule::co2, 1100)).efficiency, 1200.0 / 1207, 1e-6);
}

/// What the paper's own points (arXiv 2401.16265: DDP on 16 and 128 GPUs) say about an all-reduce, in steps, gives its
/// other points: 304,736 words/s with 48 steps to a round on 128 GPUs, each of 8 GPUs at 18,444.
TEST(Co2, PublishedThroughputs) {
  const auto words = [](OuterRule rule, int period, int hosts) {
    Co2Run run = run_of(rule, 100 * (6.88 + 2.70 * 2 * (hosts - 1) / hosts));
    run.pass_us = 0;
    run.period = period;
    return co2(run, hosts).efficiency * 18444 * hosts;
  };
  EXPECT_NEAR(words(OuterRule::ddp, 12, 2), 3488, 10);
  EXPECT_NEAR(words(OuterRule::ddp, 12, 16), 22810, 20);
  EXPECT_NEAR(words(OuterRule::co2, 48, 16) / 304736, 1, 0.08);
  EXPECT_NEAR(words(OuterRule::local_sgd, 48, 16), 236e3, 1e3);
  EXPECT_NEAR(words(OuterRule::slow_mo, 12, 16), 148e3, 1e3);
}

TEST(Co2, OneGroupExchangesNothing) {
  const Co2Time time = co2(run_of(OuterRule::local_sgd, -1), 1);
  EXPECT_EQ(time.groups, 1);
  EXPECT_EQ(time.round_us, 1200);
  EXPECT_EQ(time.all_reduce_us, 0);
}

TEST(Co2, NetworkTimesJitterAndSeeds) {
  Co2Run run = run_of(OuterRule::local_sgd, -1);
  run.parameters = 8e6;
  const Co2Time even = co2(run);
  // A rank's million parameters around 16 hosts, over a NIC of 10 GB/s.
  EXPECT_NEAR(even.all_reduce_us, 2 * 15.0 / 16 * 4e6 / 10e3, 20);
  run.sigma = 0.1;
  const Co2Time noisy = co2(run);
  EXPECT_GT(noisy.round_us, even.round_us);  // the slowest of 16 is slower than the mean
  EXPECT_EQ(co2(run).round_us, noisy.round_us);
  run.seed = 2;
  EXPECT_NE(co2(run).round_us, noisy.round_us);
  run.sigma = 0;
  EXPECT_EQ(co2(run).round_us, even.round_us);
}

TEST(Co2, RefusesBadValues) {
  const auto refused = [](auto change) {
    Co2Run run;
    change(&run);
    return co2_training(run, quiet_machine(), rail_fat_tree(4, 8, 10, 64, 1).value()).status().code();
  };
  EXPECT_EQ(refused([](Co2Run* r) { r->per_group = 3; }), Errc::invalid_argument);
  EXPECT_EQ(refused([](Co2Run* r) { r->period = 0; }), Errc::invalid_argument);
  EXPECT_EQ(refused([](Co2Run* r) { r->rule = OuterRule::streaming, r->fragments = 5; }), Errc::invalid_argument);
  EXPECT_EQ(refused([](Co2Run* r) { r->rule = OuterRule::streaming, r->delay = 13; }), Errc::invalid_argument);
  EXPECT_EQ(refused([](Co2Run* r) { r->step_us = 0; }), Errc::invalid_argument);
  EXPECT_EQ(refused([](Co2Run* r) { r->sigma = -1; }), Errc::invalid_argument);
  EXPECT_EQ(refused([](Co2Run* r) { r->parameters = 1e20; }), Errc::invalid_argument);
}

/// Fragments and delay are streaming's alone.
TEST(Co2, OtherRulesHaveNoFragments) {
  Co2Run run = run_of(OuterRule::co2, 10);
  run.period = 6;  // which 4 fragments do not divide
  run.delay = 7;
  EXPECT_EQ(co2(run).round_us, 6 * 100 + 7);
  run.rule = OuterRule::streaming;
  EXPECT_EQ(
      co2_training(run, quiet_machine(), rail_fat_tree(4, 8, 10, 64, 1).value()).status().message(),
      "co2: streaming 4 fragments with delay 7 in rounds of 6 steps, wanted fragments that divide a round, a delay "
      "within one");
}

TEST(Co2, RefusesMoreThanItCanHold) {
  const auto message = [](const Co2Run& run) {
    return co2_training(run, quiet_machine(), rail_fat_tree(4, 8, 10, 64, 1).value()).status().message();
  };
  Co2Run run = run_of(OuterRule::ddp, 10);
  run.period = 1024;
  run.rounds = 4096;
  EXPECT_EQ(message(run),
            "co2: 1 groups that differ x 4096 rounds x 1024 exchanges are 4194304 exchanges, wanted at most 1048576");
  run.rule = OuterRule::co2;
  EXPECT_EQ(message(run), "");
  run.sigma = 0.1;
  EXPECT_EQ(message(run),
            "co2: 4 groups that differ x 4096 rounds x 1024 steps are 16777216 steps, wanted at most 4194304");
  run.sigma = 0;
  run.step_us = 1e8;
  EXPECT_NE(message(run).find("one after the other"), std::string::npos);  // more than the simulated clock holds
}

}  // namespace
}  // namespace overlace::study
