// The router against an oracle in fp64 that counts, for each expert, the experts before it.
#include "src/ops/moe/router.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "overlace/error.h"
#include "overlace/ops/moe.h"
#include "src/base/half.h"

namespace overlace::ops::moe {
namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();

struct Chosen {
  std::vector<int> experts;
  std::vector<double> weights;
};

/// What is chosen, of finite logits.
Chosen oracle(std::span<const float> logits, std::span<const float> bias, const RouterOptions& o) {
  const int experts = static_cast<int>(logits.size()), size = experts / o.num_groups;
  std::vector<double> scores, keys;
  double total = 0;
  for (const float logit : logits) total += std::exp(static_cast<double>(logit));
  for (size_t e = 0; e < logits.size(); ++e) {
    const double power = std::exp(static_cast<double>(logits[e]));
    scores.push_back(o.score == Score::softmax ? power / total : power / (1 + power));
    keys.push_back(scores[e] + (bias.empty() ? 0 : static_cast<double>(bias[e])));
  }
  const auto is_before = [](const std::vector<double>& of, size_t a, size_t b) {
    return of[a] > of[b] || (of[a] == of[b] && a < b);
  };
  std::vector<double> groups;
  for (int g = 0; g < o.num_groups; ++g) {
    std::vector<double> sorted(keys.begin() + g * size, keys.begin() + (g + 1) * size);
    std::sort(sorted.rbegin(), sorted.rend());
    groups.push_back(sorted[0] + (size > 1 ? sorted[1] : 0));
  }
  for (size_t e = 0; e < keys.size(); ++e) {
    int better = 0;
    const size_t mine = e / static_cast<size_t>(size);
    for (size_t g = 0; g < groups.size(); ++g) better += is_before(groups, g, mine) ? 1 : 0;
    if (better >= o.kept_groups) keys[e] = kNever;
  }
  Chosen out{.experts = std::vector<int>(static_cast<size_t>(o.top_k)), .weights{}};
  for (size_t e = 0; e < keys.size(); ++e) {
    int place = 0;
    for (size_t other = 0; other < keys.size(); ++other) place += is_before(keys, other, e) ? 1 : 0;
    if (place < o.top_k) out.experts[static_cast<size_t>(place)] = static_cast<int>(e);
  }
  double sum = 1e-20;
  for (const int e : out.experts) sum += scores[static_cast<size_t>(e)];
  for (const int e : out.experts)
    out.weights.push_back(scores[static_cast<size_t>(e)] / (o.renormalize ? sum : 1) *
                          static_cast<double>(o.route_scale));
  return out;
}

Choices choose(std::vector<float> logits, int64_t experts, std::vector<float> bias, const RouterOptions& options) {
  return choose_experts(logits, experts, bias, options).value();
}

TEST(MoeRouter, ChoosesAsTheOracleDoes) {
  std::mt19937 draw(7);
  for (const auto& [experts, groups, kept, k] : {std::tuple{1, 1, 1, 1},
                                                 {5, 1, 1, 2},
                                                 {8, 4, 2, 3},
                                                 {33, 11, 3, 8},
                                                 {60, 1, 1, 32},
                                                 {64, 8, 4, 6},
                                                 {6, 6, 4, 3}})
    for (const Score score : {Score::softmax, Score::sigmoid})
      for (const bool has_bias : {false, true})
        for (const bool renormalize : {false, true}) {
          const RouterOptions options{.top_k = k,
                                      .score = score,
                                      .renormalize = renormalize,
                                      .num_groups = groups,
                                      .kept_groups = kept,
                                      .route_scale = 2.5F};
          std::vector<float> logits(static_cast<size_t>(experts) * 12), bias;
          for (float& logit : logits) logit = static_cast<float>(static_cast<int>(draw() % 33) - 16) / 4;  // ties too
          for (int e = 0; has_bias && e < experts; ++e) bias.push_back(static_cast<float>(draw() % 1009) / 2000);
          const Choices got = choose(logits, experts, bias, options);
          ASSERT_EQ(got.tokens(), 12);
          for (size_t t = 0; t < 12; ++t) {
            const Chosen want =
                oracle(std::span(logits).subspan(t * static_cast<size_t>(experts), static_cast<size_t>(experts)), bias,
                       options);
            for (size_t j = 0; j < static_cast<size_t>(k); ++j) {
              const size_t i = t * static_cast<size_t>(k) + j;
              ASSERT_EQ(got.experts[i], want.experts[j]) << experts << " experts, token " << t << ", choice " << j;
              ASSERT_NEAR(got.weights[i], want.weights[j], 1e-5 * want.weights[j]) << "token " << t << ", choice " << j;
            }
          }
        }
}

TEST(MoeRouter, GivesTiesToTheLowerId) {
  EXPECT_EQ(choose({1, 3, 3, 1, 3}, 5, {}, {.top_k = 4}).experts, (std::vector<int32_t>{1, 2, 4, 0}));
  const RouterOptions groups{.top_k = 2, .num_groups = 3, .kept_groups = 1};
  EXPECT_EQ(choose({1, 2, 2, 1, 2, 1}, 6, {}, groups).experts, (std::vector<int32_t>{1, 0}));
}

TEST(MoeRouter, ChoosesByTheBiasAndWeighsWithoutIt) {
  const Choices got = choose({0, 0, 0}, 3, {0, 5, 1}, {.top_k = 2, .score = Score::sigmoid});
  EXPECT_EQ(got.experts, (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(got.weights, (std::vector<float>{0.5F, 0.5F}));
}

TEST(MoeRouter, LeavesOutWhatIsNotFinite) {
  const float nan = std::nanf(""), inf = std::numeric_limits<float>::infinity();
  const RouterOptions two{.top_k = 2, .renormalize = true};
  const Choices got = choose({nan, 1, nan, nan, nan, nan, 0, -inf, 2, 0, inf, 2}, 3, {}, two);
  EXPECT_EQ(got.experts, (std::vector<int32_t>{1, -1, -1, -1, 2, 0, 2, 0}));
  EXPECT_EQ(got.weights[0], 1);
  EXPECT_EQ(got.weights[1], 0);
  EXPECT_EQ(got.weights[2], 0);
  EXPECT_EQ(got.nan_tokens, 2);
  EXPECT_EQ(choose({1, 2, 3}, 3, {0, 0, -inf}, two).experts, (std::vector<int32_t>{1, 0}));
  const RouterOptions grouped{.top_k = 2, .num_groups = 2, .kept_groups = 1};
  EXPECT_EQ(choose({nan, nan, nan, 4}, 4, {}, grouped).experts, (std::vector<int32_t>{3, -1}));
}

TEST(MoeRouter, RefusesOptionsThatDoNotFit) {
  const auto why = [](const RouterOptions& options, size_t num_logits, size_t num_bias) {
    const std::vector<float> logits(num_logits), bias(num_bias);
    return choose_experts(logits, 6, bias, options).status().message();
  };
  EXPECT_EQ(why({.top_k = 7}, 6, 0),
            "choose_experts: top_k is 7, wanted 1 to 6 (at most 32, of 6 experts in 1 groups)");
  EXPECT_EQ(why({.top_k = 3, .num_groups = 3}, 6, 0),
            "choose_experts: top_k is 3, wanted 1 to 2 (at most 32, of 2 experts in 1 groups)");
  EXPECT_EQ(why({.num_groups = 4}, 6, 0), "choose_experts: num_groups is 4, wanted a divisor of the 6 experts");
  EXPECT_EQ(why({.num_groups = 3, .kept_groups = 4}, 6, 0),
            "choose_experts: kept_groups is 4, wanted 1 to the 3 groups");
  EXPECT_EQ(why({}, 7, 0), "choose_experts: 7 logits, wanted a multiple of the 6 experts");
  EXPECT_EQ(why({}, 6, 5), "choose_experts: bias has 5 entries, wanted 6, one of each expert");
}

TEST(MoeRouter, MakesLogitsThatDoNotDependOnOtherTokens) {
  constexpr int64_t kTokens = 9, kHidden = 40, kExperts = 7;
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    std::vector<char> x(kTokens * kHidden * dtype_bytes(dtype)), gate(kExperts * kHidden * dtype_bytes(dtype));
    for (int64_t i = 0; i < kTokens * kHidden; ++i)
      base::store_element(x.data(), dtype, i, std::sin(static_cast<double>(i) * 0.7));
    for (int64_t i = 0; i < kExperts * kHidden; ++i)
      base::store_element(gate.data(), dtype, i, std::cos(static_cast<double>(i) * 1.3));
    const TensorView rows = TensorView::contiguous(x.data(), dtype, {kTokens, kHidden});
    const TensorView weights = TensorView::contiguous(gate.data(), dtype, {kExperts, kHidden});
    const std::vector<float> all = router_logits(rows, weights).value();
    for (int64_t t = 0; t < kTokens; ++t)
      for (int64_t e = 0; e < kExperts; ++e) {
        double want = 0;
        for (int64_t h = 0; h < kHidden; ++h)
          want += base::load_element(x.data(), dtype, t * kHidden + h) *
                  base::load_element(gate.data(), dtype, e * kHidden + h);
        EXPECT_NEAR(all[static_cast<size_t>(t * kExperts + e)], want, 1e-5) << dtype_name(dtype);
      }
    const std::vector<float> one = router_logits(rows.rows(4, 1), weights).value();
    EXPECT_EQ(one, std::vector<float>(all.begin() + 4 * kExperts, all.begin() + 5 * kExperts)) << dtype_name(dtype);
    EXPECT_TRUE(router_logits(rows.rows(0, 0), weights).value().empty());
  }
  std::vector<float> x(6);
  const TensorView two = TensorView::contiguous(x.data(), DType::fp32, {2, 3});
  EXPECT_EQ(router_logits(two, TensorView::contiguous(x.data(), DType::fp32, {3, 2})).status().message(),
            "choose_experts: x is fp32 (2, 3) and w_gate fp32 (3, 2), wanted (T, H) and (E, H), contiguous, both fp32, "
            "bf16 or "
            "fp16");
}

/// ops::choose_experts.
class MoeRouterCall : public ::testing::Test {
 protected:
  MoeRouterCall() {
    args_ = {.x = TensorView::contiguous(x_.data(), DType::fp32, {2, 2}),
             .w_gate = TensorView::contiguous(gate_.data(), DType::fp32, {3, 2}),
             .bias = TensorView::contiguous(bias_.data(), DType::fp32, {3}),
             .idx = TensorView::contiguous(idx_.data(), DType::i32, {2, 2}),
             .weights = TensorView::contiguous(weights_.data(), DType::fp32, {2, 2}),
             .score = "sigmoid",
             .renormalize = true,
             .route_scale = 4};
  }
  std::string refusal() {
    try {
      choose_experts(args_);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "";
  }

  std::vector<float> x_ = {1, 0, 0, std::nanf("")}, gate_ = {0, 1, 0, 2, 0, 3}, bias_ = {0, 2, 1};
  std::vector<int32_t> idx_ = {7, 7, 7, 7};
  std::vector<float> weights_ = {9, 9, 9, 9};
  MoeRouterArgs args_;
};

TEST_F(MoeRouterCall, WritesChoicesAndCountsTokensWithoutANumber) {
  EXPECT_EQ(choose_experts(args_), 1);
  EXPECT_EQ(idx_, (std::vector<int32_t>{1, 2, -1, -1}));
  EXPECT_EQ(weights_, (std::vector<float>{2, 2, 0, 0}));
}

TEST_F(MoeRouterCall, RefusesBadArguments) {
  args_.score = "tanh";
  EXPECT_EQ(refusal(), "choose_experts: score is \"tanh\", wanted softmax or sigmoid");
  args_.score = "softmax", args_.bias = TensorView::contiguous(bias_.data(), DType::fp32, {2});
  EXPECT_EQ(refusal(), "choose_experts: bias is fp32 (2), wanted fp32 (3), contiguous");
  args_.bias = {}, args_.idx = TensorView::contiguous(idx_.data(), DType::i32, {1, 4});
  EXPECT_EQ(refusal(), "choose_experts: idx is i32 (1, 4), wanted i32 (2, 4), contiguous");
  args_.idx = TensorView::contiguous(idx_.data(), DType::fp32, {2, 2});
  EXPECT_EQ(refusal(), "choose_experts: idx is fp32 (2, 2), wanted i32 (2, 2), contiguous");
  EXPECT_EQ(idx_, (std::vector<int32_t>{7, 7, 7, 7}));
}

}  // namespace
}  // namespace overlace::ops::moe
