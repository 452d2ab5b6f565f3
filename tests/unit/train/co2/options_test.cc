// What is refused, what is filled in, what the user is warned of.
#include "src/train/co2/options.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>

namespace overlace::train {
namespace {

TEST(Co2OptionsTest, DefaultsOfTheRules) {
  Co2Options stable = *resolve(Co2Options::stable(8));
  EXPECT_EQ(stable.outer_lr, 1);
  EXPECT_EQ(stable.outer_momentum, 0);
  EXPECT_EQ(resolve({.keep = 0})->outer_momentum, 0);
  EXPECT_EQ(resolve({.keep = 0})->phi, 1);
  EXPECT_EQ(stable.phi, 3);
  EXPECT_EQ(stable.kappa, 0);
  EXPECT_EQ(stable.keep, 0.8);
  const Co2Options anchored = *resolve({.kappa = 1});
  EXPECT_EQ(anchored.outer_momentum, 0.8);
  EXPECT_EQ(anchored.phi, 3);
  EXPECT_EQ(anchored.keep, 0);
  const Co2Options eager = *resolve({.rule = OuterRule::eager});
  EXPECT_EQ(eager.outer_lr, 1);
  EXPECT_EQ(eager.outer_momentum, 0);
  EXPECT_EQ(keep_of(eager, 4), 0.25);
  EXPECT_EQ(keep_of(*resolve({.rule = OuterRule::eager, .keep = 0.5}), 4), 0.5);
  const struct {
    int gpus;
    double beta;
  } rows[] = {{8, 0}, {16, 0}, {17, 0.2}, {32, 0.2}, {64, 0.5}, {128, 0.6}};
  for (const auto& row : rows) EXPECT_EQ(Co2Options::paper(8, row.gpus).outer_momentum, row.beta) << row.gpus;
  const Co2Options paper = *resolve(Co2Options::paper(8, 64));
  EXPECT_EQ(paper.phi, 1);
  EXPECT_EQ(paper.kappa, 0);
  EXPECT_EQ(paper.keep, 0);
  EXPECT_EQ(paper.gap, StalenessGap::adaptive);
  const Co2Options diloco = *resolve({.rule = OuterRule::diloco});
  EXPECT_EQ(diloco.outer_lr, 0.7);
  EXPECT_EQ(diloco.outer_momentum, 0.9);
  EXPECT_EQ(diloco.clip, MomentumClip::none);
  EXPECT_EQ(diloco.keep, 0);
  const Co2Options streaming = *resolve({.rule = OuterRule::streaming, .tau = 6});
  EXPECT_EQ(streaming.outer_lr, 0.7);
  EXPECT_EQ(streaming.outer_momentum, 0.9);
  EXPECT_EQ(streaming.fragments, 3);
  EXPECT_EQ(streaming.delay, 1);
  EXPECT_EQ(streaming.mix, 0.5);
  EXPECT_EQ(resolve({.rule = OuterRule::streaming, .tau = 12})->fragments, 4);
  EXPECT_EQ(resolve({.rule = OuterRule::streaming, .tau = 7})->fragments, 1);
  EXPECT_EQ(resolve({.rule = OuterRule::slow_mo})->outer_momentum, 0.2);
  EXPECT_EQ(resolve({.rule = OuterRule::local_sgd})->outer_momentum, 0);
}

TEST(Co2OptionsTest, EachBadValueIsNamedWithWhatIsWanted) {
  const struct {
    std::function<void(Co2Options&)> change;
    const char* text;
  } rows[] = {
      {[](Co2Options& o) { o.tau = 0; }, "tau is 0, wanted: at least 1"},
      {[](Co2Options& o) { o.outer_momentum = 1; }, "outer_momentum is 1, wanted: 0 or more and below 1"},
      {[](Co2Options& o) { o.outer_momentum = -0.5; }, "outer_momentum is -0.5, wanted: 0 or more and below 1"},
      {[](Co2Options& o) { o.outer_lr = 0; }, "outer_lr is 0, wanted: more than 0"},
      {[](Co2Options& o) { o.phi = 0; }, "phi is 0, wanted: more than 0"},
      {[](Co2Options& o) { o.kappa = 1.5; }, "kappa is 1.5, wanted: 0 to 1"},
      {[](Co2Options& o) { o.gap_value = 0.5; }, "gap_value is 0.5, wanted: at least 1"},
      {[](Co2Options& o) { o.warmup_sync_steps = -1; }, "warmup_sync_steps is -1, wanted: 0 or more"},
      {[](Co2Options& o) { o.check_every = -1; }, "check_every is -1, wanted: 0 or more"},
      {[](Co2Options& o) { o.cooldown_sync_steps = 5; },
       "total_steps is 0 with cooldown_sync_steps 5 and warmup_sync_steps 0; wanted: at least their sum"},
      {[](Co2Options& o) { o.rule = OuterRule::local_sgd, o.outer_momentum = 0.5; },
       "local_sgd has no outer momentum and outer_lr 1, got 0.5 and 1; wanted: slow_mo"},
      {[](Co2Options& o) { o.rule = OuterRule::diloco, o.gap = StalenessGap::adaptive; },
       "gap is adaptive with rule diloco, wanted: none, or rule co2"},
      {[](Co2Options& o) { o.rule = OuterRule::diloco, o.keep = 0.5; },
       "keep is 0.5 with rule diloco, which has no stale increments; wanted: none"},
      {[](Co2Options& o) { o.rule = OuterRule::streaming, o.fragments = 5; },
       "fragments is 5 with tau 12, wanted: a divisor of it"},
      {[](Co2Options& o) { o.rule = OuterRule::streaming, o.fragments = -1; },
       "fragments is -1 with tau 12, wanted: a divisor of it"},
      {[](Co2Options& o) { o.rule = OuterRule::streaming, o.fragments = 3, o.delay = 5; },
       "delay is 5 with tau 12 and 3 fragments, wanted: 0 to 4, until the next is sent"},
      {[](Co2Options& o) { o.rule = OuterRule::streaming, o.mix = 1; }, "mix is 1, wanted: 0 or more and below 1"},
      {[](Co2Options& o) { o.keep = 1.5; }, "keep is 1.5, wanted: 0 to 1"},
      {[](Co2Options& o) { o.rule = OuterRule::eager, o.keep = -0.5; }, "keep is -0.5, wanted: 0 to 1"},
      {[](Co2Options& o) {
         o.schedule = {{4}, {0}};
       },
       "tau is 0 in round 1, wanted: at least 1"},
      {[](Co2Options& o) {
         o.schedule = {{4, 0}};
       },
       "outer_lr is 0 in round 0, wanted: more than 0"},
      {[](Co2Options& o) {
         o.schedule = {{4, 1, 1}};
       },
       "outer_momentum is 1 in round 0, wanted: 0 or more and below 1"},
      {[](Co2Options& o) {
         o.rule = OuterRule::local_sgd, o.schedule = {{4, 0.5}};
       },
       "local_sgd has no outer momentum and outer_lr 1, got 0 and 0.5 in round 0; wanted: slow_mo"},
      {[](Co2Options& o) {
         o.rule = OuterRule::streaming, o.schedule = {{12}, {8}};
       },
       "tau is 8 in round 1 with rule streaming, wanted: 12 in all rounds"},
      {[](Co2Options& o) { o.samples = 2, o.schedule = {{8}}; },
       "tau is 8 in round 0 with samples, wanted: 12 in all rounds"},
      {[](Co2Options& o) { o.momentum_over_lr = true; },
       "momentum_over_lr is set with rule co2, wanted: not, or slow_mo"},
      {[](Co2Options& o) { o.rule = OuterRule::slow_mo, o.momentum_over_lr = true, o.samples = 2; },
       "samples is 2 with momentum_over_lr, which follows learning rates that unequal groups do not have alike; "
       "wanted: "
       "one of them"},
  };
  for (const auto& row : rows) {
    Co2Options options;
    row.change(options);
    const auto resolved = resolve(options);
    ASSERT_FALSE(resolved.ok()) << row.text;
    EXPECT_EQ(resolved.status().code(), Errc::invalid_argument);
    EXPECT_EQ(resolved.status().message(), row.text);
  }
}

TEST(Co2OptionsTest, WarnsOfMomentumThatIsNotStable) {
  Co2Options options;
  options.keep = 0;
  options.outer_momentum = 0.5;
  EXPECT_NE(warning_of(*resolve(options)).find("less than a factor of 0.5"), std::string::npos)
      << warning_of(*resolve(options));
  options.keep = 1;
  EXPECT_EQ(warning_of(*resolve(options)), "");
  options.outer_momentum = 0.9;
  EXPECT_NE(warning_of(*resolve(options)).find("less than a factor of 0.87"), std::string::npos)
      << warning_of(*resolve(options));
  options.gap = StalenessGap::adaptive;
  EXPECT_EQ(warning_of(*resolve(options)), "");
  EXPECT_EQ(warning_of(*resolve({})), "");
  const Co2Options scheduled{.outer_momentum = 0, .keep = 0, .schedule = {{4, 1, 0.2}, {4, 1, 0.5}, {4, 1, 0}}};
  EXPECT_NE(warning_of(*resolve(scheduled)).find("outer_momentum 0.5 and no gap"), std::string::npos)
      << warning_of(*resolve(scheduled));
}

TEST(Co2OptionsTest, RoundsBehindTheScheduleHaveTheOptionsOwnKnobs) {
  const Co2Options slow = *resolve({.rule = OuterRule::slow_mo, .tau = 5, .schedule = {{1, 0.5}, {2, -1, 0.3}}});
  const auto expect = [&](int64_t round, int64_t tau, double outer_lr, double outer_momentum) {
    const Co2Knobs knobs = knobs_of(slow, round);
    EXPECT_EQ(knobs.tau, tau);
    EXPECT_EQ(knobs.outer_lr, outer_lr);
    EXPECT_EQ(knobs.outer_momentum, outer_momentum);
    EXPECT_EQ(steps_of_exchange(slow, round), tau);
  };
  expect(0, 1, 0.5, 0.2);
  expect(1, 2, 1, 0.3);
  expect(2, 5, 1, 0.2);
  expect(1000, 5, 1, 0.2);
  // All fragments are a round.
  const Co2Options streaming =
      *resolve({.rule = OuterRule::streaming, .tau = 6, .fragments = 2, .schedule = {{6, 0.1}, {6, 0.2}}});
  for (const auto& [exchange, outer_lr] : {std::pair(0, 0.1), {1, 0.1}, {2, 0.2}, {3, 0.2}, {4, 0.7}})
    EXPECT_EQ(knobs_of(streaming, exchange).outer_lr, outer_lr) << exchange;
  EXPECT_EQ(steps_of_exchange(streaming, 1), 3);
  EXPECT_FALSE(has_momentum(*resolve({})));
  EXPECT_TRUE(has_momentum(*resolve({.schedule = {{4, 1, 0.1}}})));
}

TEST(Co2OptionsTest, TextNamesEveryValueThatRanksMustHaveAlike) {
  const std::string text = to_text(*resolve({}));
  for (const auto& change : {std::function<void(Co2Options&)>([](Co2Options& o) { o.tau = 13; }),
                             std::function<void(Co2Options&)>([](Co2Options& o) { o.outer_lr = 0.5; }),
                             std::function<void(Co2Options&)>([](Co2Options& o) { o.outer_momentum = 0.5; }),
                             std::function<void(Co2Options&)>([](Co2Options& o) { o.kappa = 0.5; }),
                             std::function<void(Co2Options&)>([](Co2Options& o) { o.keep = 0.5; }),
                             std::function<void(Co2Options&)>([](Co2Options& o) { o.phi = 2; }),
                             std::function<void(Co2Options&)>([](Co2Options& o) { o.clip = MomentumClip::none; }),
                             std::function<void(Co2Options&)>([](Co2Options& o) { o.gap = StalenessGap::adaptive; }),
                             std::function<void(Co2Options&)>([](Co2Options& o) { o.warmup_sync_steps = 1; }),
                             std::function<void(Co2Options&)>([](Co2Options& o) { o.schedule = {{12}}; }),
                             std::function<void(Co2Options&)>([](Co2Options& o) { o.check_every = 1; })}) {
    Co2Options options;
    change(options);
    EXPECT_NE(to_text(*resolve(options)), text);
  }
  // Every knob of every round counts; of unequal groups, whose tau is their own, all but that.
  const auto of = [](int64_t tau, double outer_lr, double outer_momentum, double samples) {
    return to_text(*resolve({.tau = tau, .samples = samples, .schedule = {{tau}, {tau, outer_lr, outer_momentum}}}));
  };
  EXPECT_EQ(of(3, 1, 0, 0), of(3, 1, 0, 0));
  EXPECT_NE(of(3, 1, 0, 0), of(3, 0.5, 0, 0));
  EXPECT_NE(of(3, 1, 0, 0), of(3, 1, 0.1, 0));
  EXPECT_EQ(of(3, 1, 0, 8), of(4, 1, 0, 8));
  EXPECT_NE(of(3, 1, 0, 8), of(3, 0.5, 0, 8));
  EXPECT_NE(to_text(*resolve({.rule = OuterRule::slow_mo})),
            to_text(*resolve({.rule = OuterRule::slow_mo, .momentum_over_lr = true})));
  EXPECT_NE(to_text(*resolve({.schedule = {{3}, {4}}})), to_text(*resolve({.schedule = {{4}, {3}}})));
}

}  // namespace
}  // namespace overlace::train
