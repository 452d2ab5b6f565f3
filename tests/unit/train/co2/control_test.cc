// Gap, clip and header by values made by hand.
#include "src/train/co2/control.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "overlace/co2.h"

namespace overlace::train {
namespace {

KnobsPod adaptive(int64_t boundary) {
  KnobsPod knobs;
  knobs.gap = static_cast<int32_t>(StalenessGap::adaptive);
  knobs.boundary = boundary;
  return knobs;
}

TEST(Co2Gap, AdaptiveByHand) {
  ControlPod control;
  control.alpha_moved = 0.5;
  EXPECT_EQ(next_lambda(control, adaptive(1), 8), 1);  // before round 2 there is none
  EXPECT_EQ(control.moved, 4);
  EXPECT_EQ(control.farthest, 4);
  EXPECT_DOUBLE_EQ(next_lambda(control, adaptive(2), 2), 1 + 1 / 3.96);
  EXPECT_DOUBLE_EQ(control.farthest, 3.96);
  EXPECT_DOUBLE_EQ(next_lambda(control, adaptive(3), 100), 2);  // the farthest so far
  EXPECT_EQ(control.farthest, 50);
}

TEST(Co2Gap, FollowsTheLearningRate) {
  ControlPod control;
  control.alpha_moved = 1;
  control.farthest = 100;
  KnobsPod knobs = adaptive(5);
  knobs.lr_ratio = 0.5;
  EXPECT_DOUBLE_EQ(next_lambda(control, knobs, 10), 1 + 10 / 49.5);
  knobs.lr_ratio = 2.5;  // a restart
  EXPECT_DOUBLE_EQ(next_lambda(control, knobs, 10), 2);
  EXPECT_EQ(control.farthest, 10);
}

TEST(Co2Gap, OneWhereNothingMovedOrTheRunEnds) {
  ControlPod control;
  EXPECT_EQ(next_lambda(control, adaptive(9), 3), 1);  // alpha_moved 0: the anchor stayed
  control.alpha_moved = 1;
  KnobsPod knobs = adaptive(9);
  knobs.is_flush = 1;
  EXPECT_EQ(next_lambda(control, knobs, 3), 1);
  knobs = adaptive(9);
  knobs.gap = static_cast<int32_t>(StalenessGap::constant);
  knobs.gap_value = 1.75;
  EXPECT_EQ(next_lambda(control, knobs, 3), 1.75);
}

TEST(Co2Clip, BoundsByHand) {
  KnobsPod knobs;
  TensorPod tensor{.count = 4};
  next_bound(tensor, knobs, 2);
  EXPECT_EQ(tensor.bound, std::numeric_limits<float>::infinity());
  knobs.clip = static_cast<int32_t>(MomentumClip::absolute);
  knobs.phi = 0.25;
  next_bound(tensor, knobs, 0);
  EXPECT_EQ(tensor.bound, 0.25f);
  knobs.clip = static_cast<int32_t>(MomentumClip::relative);
  knobs.phi = 3;
  TensorPod fresh{.count = 4};
  next_bound(fresh, knobs, 0);  // nothing has come in yet
  EXPECT_EQ(fresh.bound, std::numeric_limits<float>::infinity());
  next_bound(fresh, knobs, 2);
  EXPECT_EQ(fresh.bound, 6);
  next_bound(fresh, knobs, 4);
  EXPECT_FLOAT_EQ(fresh.bound, 3 * (0.9f * 2 + 0.1f * 4));
  const double kept = fresh.mean_rms;
  next_bound(fresh, knobs, std::nan(""));  // of a round that was dropped
  next_bound(fresh, knobs, std::numeric_limits<double>::infinity());
  EXPECT_EQ(fresh.mean_rms, kept);
  knobs.is_flush = 1;
  next_bound(fresh, knobs, 2);
  EXPECT_EQ(fresh.bound, std::numeric_limits<float>::infinity());
}

HeaderPod times(const HeaderPod& one, double g) {
  return {one.count * g, one.round * g, one.config_low * g, one.config_high * g, one.bad * g,
          one.norm2 * g, one.steps * g, one.version * g,    one.anchor_low * g,  one.anchor_high * g};
}

TEST(Co2Header, IsGoodWhereAllGroupsAreInStep) {
  const std::vector<SumsPod> sums = {{.w2 = 4}, {.w2 = 5}};
  const HeaderPod own = header_of(sums, 7, 12, 0xfedcba9876543210ull, 0x123456789abcdef0ull);
  EXPECT_EQ(own.config_low, 0x76543210u);
  EXPECT_EQ(own.config_high, 0xfedcba98u);
  EXPECT_EQ(own.norm2, 9);
  for (const int64_t groups : {1, 3, 128})
    EXPECT_EQ(judge(times(own, static_cast<double>(groups)), own, groups), Verdict::good) << groups;
}

TEST(Co2Header, EveryWordThatDiffersIsNamed) {
  const std::vector<SumsPod> sums(1);
  const HeaderPod own = header_of(sums, 7, 12, 0x100000002ull, 0x300000004ull);
  const struct {
    double HeaderPod::*word;
    const char* named;
  } rows[] = {{&HeaderPod::count, "groups"},
              {&HeaderPod::round, "round"},
              {&HeaderPod::config_low, "configuration (low"},
              {&HeaderPod::config_high, "configuration (high"},
              {&HeaderPod::steps, "steps of the round"},
              {&HeaderPod::version, "version"},
              {&HeaderPod::anchor_low, "anchor (low"},
              {&HeaderPod::anchor_high, "anchor (high"}};
  for (const auto& row : rows) {
    HeaderPod sum = times(own, 2);
    sum.*row.word += 1;
    ControlPod control;
    control.verdict = judge(sum, own, 2);
    EXPECT_EQ(control.verdict, Verdict::desync) << row.named;
    const base::Status status = status_of(control, sum, own, {.groups = 2});
    EXPECT_EQ(status.code(), Errc::desync);
    EXPECT_NE(status.message().find(row.named), std::string::npos) << status.message();
  }
}

TEST(Co2Header, BadValuesDropARoundAndThreeInARowAreAnError) {
  const std::vector<SumsPod> sums(1);
  const HeaderPod own = header_of(sums, 7, 12, 1, 0);
  HeaderPod sum = times(own, 2);
  sum.bad = 3;
  ControlPod control;
  KnobsPod knobs;
  knobs.groups = 2;
  std::vector<TensorPod> tensors(1);
  for (int i = 1; i <= 3; ++i) {
    begin_boundary(control, tensors, sums, &sum, own, knobs);
    EXPECT_EQ(control.pass.is_applied, 0);
    end_boundary(control, knobs);
    EXPECT_EQ(control.alpha_moved, 0);
    const base::Status status = status_of(control, sum, own, {.groups = 2});
    EXPECT_EQ(status.code(), i < 3 ? Errc::ok : Errc::non_finite);
  }
  const HeaderPod good = times(own, 2);
  begin_boundary(control, tensors, sums, &good, own, knobs);
  EXPECT_EQ(control.bad_in_row, 0);
  EXPECT_EQ(control.pass.is_applied, 1);
}

TEST(Co2Header, StaysANumberBesideValuesThatAreNone) {
  const std::vector<SumsPod> sums = {{.w2 = std::numeric_limits<double>::infinity(), .bad = 2}};
  const HeaderPod own = header_of(sums, 0, 1, 1, 0);
  EXPECT_EQ(own.norm2, 0);
  EXPECT_EQ(own.bad, 2);
}

TEST(Co2Control, ScalarsOfTheRules) {
  ControlPod control;
  control.verdict = Verdict::good;
  control.alpha_moved = 0.5;
  control.lambda = 2;
  KnobsPod knobs;
  knobs.alpha = 0.7;
  knobs.beta = 0.9;
  knobs.kappa = 0.5;
  PassPod pass = pass_of(control, knobs);
  EXPECT_EQ(pass.pull, 0.25f);
  EXPECT_EQ(pass.inv_lambda, 0.5f);
  EXPECT_EQ(pass.beta, 0.9f);
  EXPECT_EQ(pass.step_m, 0.7f);
  EXPECT_EQ(pass.step_d, 0);
  knobs.is_nesterov = 1;
  pass = pass_of(control, knobs);
  EXPECT_EQ(pass.step_m, static_cast<float>(0.7 * 0.9));
  EXPECT_EQ(pass.step_d, 0.7f);
  knobs.is_nesterov = 0;
  knobs.is_flush = 1;
  EXPECT_EQ(pass_of(control, knobs).beta, 0);
}

}  // namespace
}  // namespace overlace::train
