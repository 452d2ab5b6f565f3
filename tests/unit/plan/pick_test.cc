#include "src/plan/pick.h"

#include <gtest/gtest.h>

namespace overlace::plan {
namespace {

spec::OpSpec gather() {
  spec::OpSpec out;
  out.op = "ag_gemm";
  return out;
}

TEST(Pick, TakesTheFastestThatGainsEnough) {
  const std::vector<Alternative> list = {{{"hetero_fused_1d", 2}, 90}, {{"serial", 1}, 99}, {{"library", 1}, 100}};
  const auto found = pick(gather(), {}, list);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->best, 0u);
  EXPECT_EQ(found->chosen, 0u);
  EXPECT_DOUBLE_EQ(found->gain, 0.1);
  const std::vector<Alternative> close = {{{"hetero_fused_1d", 2}, 98.5}, {{"library", 1}, 100}};
  EXPECT_EQ(pick(gather(), {}, close)->best, 0u);
  EXPECT_EQ(pick(gather(), {}, close)->chosen, 1u);
  EXPECT_FALSE(pick(gather(), {}, {{{"serial", 1}, 99}}).has_value()) << "nothing to compare with";
}

TEST(Pick, ErrorsOfFamiliesOnlyBreakTies) {
  spec::Machine::Errors errors;
  errors["ag_gemm"] = {{"library", {0.01, 0.02}}, {"hetero_unfused_1d", {0.03, 0.09}}};
  // Nobody measured hetero_fused_1d here: 10 %.
  const auto best = [&](double unmeasured_us) {
    return pick(gather(), errors,
                {{{"hetero_fused_1d", 2}, unmeasured_us}, {{"hetero_unfused_1d", 1}, 70}, {{"library", 1}, 100}})
        ->best;
  };
  EXPECT_EQ(best(69.8), 1u);
  EXPECT_EQ(best(69), 0u);
  EXPECT_EQ(best(70.2), 1u);
  // 4 % less than library: no error of a family is held against it.
  EXPECT_EQ(pick(gather(), errors, {{{"hetero_fused_1d", 2}, 96}, {{"library", 1}, 100}})->chosen, 0u);
  EXPECT_DOUBLE_EQ(median_error(errors, gather(), "hetero_fused_1d"), 0.1);
  EXPECT_DOUBLE_EQ(median_error(errors, gather(), "hetero_unfused_1d"), 0.03);
  EXPECT_DOUBLE_EQ(p90_error(errors, gather(), "hetero_unfused_1d"), 0.09);
  EXPECT_DOUBLE_EQ(p90_error(errors, gather(), "hetero_fused_1d"), 0.2);
}

TEST(Pick, MoreChunksMustGainTwoPercent) {
  const auto best = [](double coarse_us, double fine_us, double finest_us) {
    return pick(gather(), {},
                {{{"hetero_fused_1d", 4}, fine_us},
                 {{"hetero_fused_1d", 8}, finest_us},
                 {{"library", 1}, 100},
                 {{"uniform_fused_1d", 1}, 70.5},
                 {{"hetero_fused_1d", 2}, coarse_us}})
        ->best;
  };
  EXPECT_EQ(best(71, 70, 75), 4u);
  EXPECT_EQ(best(71.5, 70, 75), 0u) << "2.1 % gained";
  EXPECT_EQ(best(71, 70.5, 70), 4u);
  EXPECT_EQ(best(72, 70.5, 70), 0u);
  EXPECT_EQ(best(80, 75, 70), 1u) << "another family has fewer chunks: that is no reason";
}

TEST(Pick, FewerChunksDoNotLoseTheGain) {
  const auto chosen = [](double coarse_us, double fine_us) {
    return pick(gather(), {},
                {{{"hetero_fused_1d", 4}, fine_us}, {{"hetero_fused_1d", 2}, coarse_us}, {{"library", 1}, 100}})
        ->chosen;
  };
  EXPECT_EQ(chosen(98.9, 97.2), 0u) << "1.7 % slower, and too little gained over library";
  EXPECT_EQ(chosen(97.9, 96.5), 1u);
  EXPECT_EQ(chosen(99, 98.5), 2u) << "neither gains enough";
}

TEST(Pick, EachModelHasItsOwnErrors) {
  spec::Machine machine;
  machine.errors["ag_gemm"]["library"] = {0.01, 0.02};
  machine.recurrence_errors["ag_gemm"]["library"] = {0.03, 0.04};
  EXPECT_DOUBLE_EQ(p90_error(errors_of(machine, Tier::recurrence), gather(), "library"), 0.04);
  EXPECT_DOUBLE_EQ(p90_error(errors_of(machine, Tier::simulation), gather(), "library"), 0.02);
}

}  // namespace
}  // namespace overlace::plan
