#include "cli/run/check.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace overlace::cli {
namespace {

TEST(RelativeError, IsTheLargestDeviationInUnitsOfTheRms) {
  const std::vector<double> oracle = {3, -4, 0, 0};  // rms 2.5
  EXPECT_DOUBLE_EQ(relative_error(std::vector<float>{3, -4, 0, 0}, oracle), 0);
  EXPECT_DOUBLE_EQ(relative_error(std::vector<float>{3, -4, 0.5f, 0}, oracle), 0.2);
  EXPECT_DOUBLE_EQ(relative_error(std::vector<float>{3, -3, 0.5f, 0}, oracle), 0.4);
}

TEST(RelativeError, NeverAcceptsWhatIsNotFinite) {
  const std::vector<double> oracle = {1, 1};
  EXPECT_TRUE(std::isinf(relative_error(std::vector<float>{1, NAN}, oracle)));
  EXPECT_TRUE(std::isinf(relative_error(std::vector<float>{-INFINITY, 1}, oracle)));
  EXPECT_TRUE(std::isinf(relative_error(std::vector<float>{1, 0}, std::vector<double>{0, 0})));
}

TEST(Judge, AllowsTwiceTheUnfusedErrorAndAnUlp) {
  const double ulp = dtype_ulp(DType::fp32);
  EXPECT_TRUE(judge(2e-6 + 0.9 * ulp, 1e-6, DType::fp32, 2, 512).ok);
  const Verdict bad = judge(2e-6 + 1.1 * ulp, 1e-6, DType::fp32, 2, 512);
  EXPECT_FALSE(bad.ok);
  EXPECT_NE(bad.why_not.find("overlapped run's error"), std::string::npos);
  EXPECT_TRUE(judge(0.004, 0, DType::bf16, 1, 512).ok);
  EXPECT_FALSE(judge(0.004, 0, DType::fp16, 1, 512).ok);
}

TEST(JudgeChoices, RefusesAChoiceThatRoundingDoesNotExplain) {
  const auto verdict_of = [](double gap) {
    Verdict verdict{true, 0, ""};
    judge_choices(gap, 1e-6, DType::fp32, &verdict);
    return verdict;
  };
  EXPECT_TRUE(verdict_of(0).ok);
  EXPECT_TRUE(verdict_of(4e-6).ok);
  EXPECT_FALSE(verdict_of(5e-6).ok);
  EXPECT_FALSE(verdict_of(std::numeric_limits<double>::infinity()).ok);
  EXPECT_NE(verdict_of(0.5).why_not.find("misses the best one by 0.5"), std::string::npos);
  Verdict earlier{false, 0, "first"};
  judge_choices(1, 1e-6, DType::fp32, &earlier);
  EXPECT_EQ(earlier.why_not, "first");
}

TEST(Judge, RefusesABaselineThatIsItselfWrong) {
  const Verdict wrong = judge(4.0, 4.0, DType::fp32, 2, 512);
  EXPECT_FALSE(wrong.ok);
  EXPECT_NE(wrong.why_not.find("unfused run's error 4"), std::string::npos);
  EXPECT_FALSE(judge(4.0, 4.0, DType::bf16, 2, 28672).ok);
  EXPECT_FALSE(judge(INFINITY, 1e-6, DType::fp32, 2, 512).ok);
  EXPECT_FALSE(judge(1e-6, INFINITY, DType::fp32, 2, 512).ok);
}

}  // namespace
}  // namespace overlace::cli
