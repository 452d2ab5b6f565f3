// The outer iteration on an exact quadratic: what diverges, what a gap or a clip saves, and the region that is stable.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "src/train/co2/control.h"
#include "src/train/co2/options.h"
#include "src/train/co2/pass.h"

namespace overlace::train {
namespace {

/// One parameter, loss h/2 x^2: a round leaves 1 - c of it. All groups do the same, so that one stands for all.
class Quadratic {
 public:
  Quadratic(KnobsPod knobs, double c) : knobs_(knobs), c_(static_cast<float>(c)) { bound_.count = 1; }

  /// |x| at the end of a round.
  double round() {
    x_ -= c_ * x_;
    const double seen = std::abs(x_);
    const HeaderPod own = header_of({&sums_, 1}, knobs_.boundary - 1, 1, 7, 0);
    knobs_.boundary = next_;
    begin_boundary(control_, {&bound_, 1}, {&sums_, 1}, next_ == 0 ? nullptr : &own, own, knobs_);
    const PassTensor tensor{.x = &x_, .count = 1};
    run_pass(threads_, PassMode::fused, control_.pass, 1, {&tensor, 1}, {&bound_, 1},
             {.anchor = &a_, .momentum = &m_, .kept = knobs_.keep > 0 ? &kept_ : nullptr, .wire = &w_}, {&sums_, 1});
    end_boundary(control_, knobs_);
    ++next_;
    return seen;
  }

 private:
  KnobsPod knobs_;
  const float c_;
  float x_ = 1, a_ = 1, m_ = 0, w_ = 0, kept_ = 0;
  int64_t next_ = 0;
  ControlPod control_;
  TensorPod bound_;
  SumsPod sums_;
  Threads threads_{1};
};

/// The largest |x| of the last 8 of 60 rounds over the start.
double after_60_rounds(double kappa, double beta, StalenessGap gap = StalenessGap::none, double phi = 0) {
  KnobsPod knobs;
  knobs.kappa = kappa;
  knobs.beta = beta;
  knobs.gap = static_cast<int32_t>(gap);
  knobs.clip = phi > 0 ? static_cast<int32_t>(MomentumClip::absolute) : 0;
  knobs.phi = phi;
  Quadratic run(knobs, 0.9);
  double largest = 0;
  for (int t = 0; t < 60; ++t) {
    // x of the end of a round is a tenth of the anchor.
    const double seen = run.round() / (1 - 0.9f);
    if (t >= 52) largest = std::max(largest, seen);
  }
  return largest;
}

TEST(Co2Stability, WhatDivergesAndWhatSavesIt) {
  EXPECT_GE(after_60_rounds(0, 0.5), 1e3);
  EXPECT_LE(after_60_rounds(0, 0.5, StalenessGap::adaptive), 10);
  EXPECT_LE(after_60_rounds(0, 0.5, StalenessGap::none, 0.1), 0.3);
  EXPECT_LE(after_60_rounds(1, 0.5), 1e-9);
  EXPECT_LE(after_60_rounds(1, 0.8), 1e-3);
  EXPECT_LE(after_60_rounds(0, 0), 0.2);
  // The gap and the clip bound it; they do not make it converge.
  EXPECT_GE(after_60_rounds(0, 0.5, StalenessGap::adaptive), 0.1);
  EXPECT_GE(after_60_rounds(0, 0.5, StalenessGap::none, 0.1), 0.01);
}

TEST(Co2Stability, ConstantGapOfTwoIsStableWhereTheTextSaysSo) {
  EXPECT_TRUE(is_stable(0, 1, 0.5, 2, 0.9));
  EXPECT_FALSE(is_stable(0, 1, 0.5, 1, 0.9));
  EXPECT_TRUE(is_stable(0, 1, 0.5, 1, 0.49));
  EXPECT_FALSE(is_stable(0, 1, 0, 1, 1.01));
  EXPECT_TRUE(is_stable(1, 1, 0.8, 1, 1.19));
  EXPECT_FALSE(is_stable(1, 1, 0.8, 1, 1.21));
}

/// Rounds of the iteration that run_pass does, far from the limits of fp32; false as soon as it has grown a
/// millionfold.
bool stays_bounded(double kappa, double beta, double c, double keep = 0) {
  KnobsPod knobs;
  knobs.kappa = kappa;
  knobs.beta = beta;
  knobs.keep = keep;
  Quadratic run(knobs, c);
  double early = 0, late = 0;
  for (int t = 0; t < 2000; ++t) {
    const double seen = run.round();
    if (!(seen < 1e6)) return false;
    if (t < 200) early = std::max(early, seen);
    if (t >= 1800) late = std::max(late, seen);
  }
  return late <= early;
}

TEST(Co2Stability, TheInequalityOnAGrid) {
  int stable = 0, unstable = 0;
  for (const double kappa : {0.0, 0.5, 1.0})
    for (int i = 0; i < 20; ++i)
      for (int j = 0; j < 20; ++j) {
        // Off the edge of the region: there 2,000 rounds say nothing.
        const double beta = 0.0013 + 0.0495 * i, c = 0.0151 + 0.097 * j;
        const bool expected = is_stable(kappa, 1, beta, 1, c);
        EXPECT_EQ(stays_bounded(kappa, beta, c), expected) << "kappa " << kappa << " beta " << beta << " c " << c;
        ++(expected ? stable : unstable);
      }
  EXPECT_GT(stable, 200);
  EXPECT_GT(unstable, 200);
}

TEST(Co2Stability, TheInequalityOnAGridWhereIncrementsAreKept) {
  int stable = 0, unstable = 0;
  for (const double keep : {0.5, 1.0})
    for (const double kappa : {0.0, 1.0})
      for (int i = 0; i < 20; ++i)
        for (int j = 0; j < 20; ++j) {
          // One group says nothing of how groups differ, which needs keep * c below 1.
          const double beta = 0.0013 + 0.0495 * i, c = 0.0151 + 0.049 * j;
          const bool expected = is_stable(kappa, 1, beta, 1, c, keep);
          EXPECT_EQ(stays_bounded(kappa, beta, c, keep), expected)
              << "keep " << keep << " kappa " << kappa << " beta " << beta << " c " << c;
          ++(expected ? stable : unstable);
        }
  EXPECT_GT(stable, 200);
  EXPECT_GT(unstable, 100);
  EXPECT_FALSE(is_stable(0, 1, 0, 1, 1.01, 1));
}

}  // namespace
}  // namespace overlace::train
