#include "src/study/gemm/wave.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "src/study/gemm/fit.h"
#include "src/study/gemm/minimize.h"

namespace overlace::study {
namespace {

constexpr GemmMachine kMachine{100, 200, 2000};
constexpr GemmConstants kConstants{10, 1, 0.8, 100, 0.9, 30};

TEST(GemmWave, WholeWavesOfOneTileAreTheClosedForm) {
  // 8 x 25 tiles on 100 SMs: two waves. One SM: 200e6 / 100 * 0.8 = 1.6e6 flops per us.
  const auto time = gemm_time({1024, 3200, 4096}, {128, 128, 1}, kMachine, kConstants);
  ASSERT_TRUE(time.ok());
  EXPECT_EQ(time->tiles, 200);
  EXPECT_EQ(time->waves, 2);
  EXPECT_DOUBLE_EQ(time->wave_us, 1 + 2.0 * 128 * 128 * 4096 / 1.6e6);
  EXPECT_DOUBLE_EQ(time->time_us(), 10 + 2 * time->wave_us);
}

TEST(GemmWave, OneTileMoreIsOneWaveMoreButNotUnderStreamK) {
  const GemmShape shape{1024, 3200 + 1, 4096};
  const auto whole = gemm_time(shape, {128, 128, 1}, kMachine, kConstants);
  const auto even = gemm_time(shape, {128, 128, 1}, kMachine, kConstants, 0, Waves::stream_k);
  EXPECT_EQ(whole->waves, 3);
  EXPECT_DOUBLE_EQ(even->waves, 2.08);
}

TEST(GemmWave, SmsThatCommunicateAreMissing) {
  const auto time = gemm_time({1024, 3200, 4096}, {128, 128, 1}, kMachine, kConstants, 20);
  EXPECT_EQ(time->waves, 3);  // 200 tiles on 80 SMs
  EXPECT_EQ(time->sms, 80);
}

TEST(GemmWave, FewTilesAreLimitedByWhatTheirCtasDraw) {
  const auto time = gemm_time({64, 1280, 8192}, {64, 128, 1}, kMachine, kConstants);
  const double bytes = 2.0 * (64.0 * 8192 + 1280.0 * 8192 + 64.0 * 1280);
  EXPECT_DOUBLE_EQ(time->memory_us, bytes / (10 * 30 * 1e3));  // 10 CTAs of 30 GB/s, far below 1800
}

TEST(GemmWave, BestIsNeverWorseThanAnyTile) {
  const GemmShape shape{333, 5000, 7000};
  const double best = best_gemm_time(shape, kMachine, kConstants)->time_us();
  for (const int m : {32, 64, 128})
    for (const int splits : {1, 2, 8})
      EXPECT_LE(best, gemm_time(shape, {m, 128, splits}, kMachine, kConstants)->time_us()) << m << " " << splits;
}

TEST(GemmWave, GroupsCompleteWithTheirWave) {
  const auto time = gemm_time({1024, 3200, 4096}, {128, 128, 1}, kMachine, kConstants);
  const auto groups = group_completions_us(*time, 4);  // of 50 tiles: two per wave
  ASSERT_EQ(groups.size(), 4U);
  EXPECT_DOUBLE_EQ(groups[0], 10 + time->wave_us);
  EXPECT_DOUBLE_EQ(groups[1], groups[0]);
  EXPECT_DOUBLE_EQ(groups[2], time->time_us());
  EXPECT_DOUBLE_EQ(groups[3], time->time_us());
}

TEST(GemmWave, RefusesWhatHasNoMeaning) {
  EXPECT_EQ(gemm_time({0, 1, 1}, {}, kMachine, kConstants).status().code(), Errc::invalid_argument);
  EXPECT_EQ(gemm_time({1, 1, 1}, {0, 1, 1}, kMachine, kConstants).status().code(), Errc::invalid_argument);
  const auto none = best_gemm_time({1, 1, 1}, kMachine, kConstants, 100);
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.status().message(), "gemm: 100 of 100 SMs for communication, wanted at least one left");
}

TEST(GemmFit, FindsTheConstantsOfItsOwnTimes) {
  std::vector<GemmPoint> points;
  for (int64_t size = 64; size <= 16384; size *= 2)
    for (const GemmShape& shape : {GemmShape{size, 8192, 8192}, GemmShape{8192, size, size}})
      points.push_back({shape, best_gemm_time(shape, kMachine, kConstants)->time_us()});
  const auto fitted = fit_gemm(kMachine, points);
  ASSERT_TRUE(fitted.ok());
  const GemmShape held_out{3000, 5000, 7000};
  const double want = best_gemm_time(held_out, kMachine, kConstants)->time_us();
  EXPECT_NEAR(best_gemm_time(held_out, kMachine, *fitted)->time_us() / want, 1, 0.02);
}

TEST(GemmFit, RefusesTooFewPointsAndBadTimes) {
  std::vector<GemmPoint> points(5, {{64, 64, 64}, 10});
  EXPECT_EQ(fit_gemm(kMachine, points).status().code(), Errc::invalid_argument);
  points.assign(6, {{64, 64, 64}, 0});
  EXPECT_EQ(fit_gemm(kMachine, points).status().code(), Errc::invalid_argument);
}

TEST(Minimize, FindsAMinimumInTwoDimensions) {
  const auto valley = [](const std::vector<double>& x) {
    return 100 * std::pow(x[1] - x[0] * x[0], 2) + std::pow(1 - x[0], 2);
  };
  const auto x = minimize(valley, {-1.2, 1}, 0.5, 400);
  EXPECT_NEAR(x[0], 1, 1e-6);
  EXPECT_NEAR(x[1], 1, 1e-6);
}

TEST(Minimize, LineThroughPointsIsExact) {
  const Line line = fit_line({1, 2, 5}, {13, 16, 25});
  EXPECT_NEAR(line.floor, 10, 1e-9);
  EXPECT_NEAR(line.slope, 3, 1e-9);
}

}  // namespace
}  // namespace overlace::study
