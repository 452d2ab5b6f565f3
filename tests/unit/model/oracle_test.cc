// What the fp64 oracle makes of choices of experts.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>

#include "src/model/stack.h"

namespace overlace::model {
namespace {

constexpr int64_t kTokens = 32, kExperts = 4;

ModelConfig config() {
  return parse_config(R"({"model_type": "mixtral", "hidden_size": 16, "intermediate_size": 8, "num_hidden_layers": 1,
                          "num_attention_heads": 2, "num_key_value_heads": 2, "num_local_experts": 4,
                          "num_experts_per_tok": 1})",
                      "test")
      .value();
}

base::Result<std::vector<double>> run(ExpertChoices* choices) {
  Problem problem;
  problem.tokens = problem.sequence_length = kTokens;
  std::vector<float> input(static_cast<size_t>(kTokens * config().hidden));
  seeded_input(3, 0, kTokens, config().hidden, input.data());
  return oracle(config(), problem, input, -1, 1, {}, choices);
}

TEST(ExpertChoices, OnlyTheLargestLogitsHaveNoGapAndGiveTheOraclesOwnValues) {
  const std::vector<double> own = run(nullptr).value();
  std::vector<int32_t> best;  // found by trying each expert for all tokens
  for (int64_t t = 0; t < kTokens; ++t) {
    for (int32_t e = 0; e < kExperts; ++e) {
      ExpertChoices choices{std::vector<int32_t>(kTokens, e)};
      const std::vector<double> values = run(&choices).value();
      EXPECT_GT(choices.gap, 0.01) << "no expert is the best of all tokens";
      const auto at = static_cast<size_t>(t * config().hidden);
      if (std::equal(values.begin() + t * config().hidden, values.begin() + (t + 1) * config().hidden, &own[at]))
        best.push_back(e);
    }
  }
  ASSERT_EQ(best.size(), static_cast<size_t>(kTokens)) << "experts differ in what they give";
  ExpertChoices choices{best};
  EXPECT_EQ(run(&choices).value(), own);
  EXPECT_EQ(choices.gap, 0);
}

TEST(ExpertChoices, RefusesWhatIsNoChoice) {
  for (const int32_t expert : {-1, 4}) {
    ExpertChoices choices{std::vector<int32_t>(kTokens, expert)};
    ASSERT_TRUE(run(&choices).ok());
    EXPECT_TRUE(std::isinf(choices.gap)) << expert;
  }
  ExpertChoices few{{0, 1}};
  const auto got = run(&few);
  ASSERT_FALSE(got.ok());
  EXPECT_EQ(got.status().message(), "oracle: there are 2 choices of experts, wanted 32");
}

TEST(ExpertChoices, LayersWithoutExpertsLookAtNone) {
  const ModelConfig mixed = parse_config(R"({"model_type": "qwen2_moe", "hidden_size": 16, "intermediate_size": 8,
      "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2, "num_experts": 4,
      "num_experts_per_tok": 2,
      "moe_intermediate_size": 6, "shared_expert_intermediate_size": 10, "mlp_only_layers": [0]})",
                                         "test")
                                .value();
  Problem problem;
  problem.layers = 2;
  problem.tokens = problem.sequence_length = 3;
  const std::vector<float> input(static_cast<size_t>(3 * mixed.hidden), 0.5f);
  ExpertChoices choices{{-1, -1, -1, -1, -1, -1, 0, 1, 0, 1, 0, 1}};
  ASSERT_TRUE(oracle(mixed, problem, input, -1, 1, {}, &choices).ok());
  EXPECT_TRUE(std::isfinite(choices.gap));
  choices.experts.back() = -1;
  ASSERT_TRUE(oracle(mixed, problem, input, -1, 1, {}, &choices).ok());
  EXPECT_TRUE(std::isinf(choices.gap));
}

TEST(OracleTest, CountsTheLayersThatAreDone) {
  const ModelConfig llama = parse_config(R"({"model_type": "llama", "hidden_size": 16, "intermediate_size": 8,
      "num_hidden_layers": 3, "num_attention_heads": 2})",
                                         "test")
                                .value();
  Problem problem;
  problem.layers = 3;
  problem.tokens = problem.sequence_length = 2;
  const std::vector<float> input(static_cast<size_t>(2 * llama.hidden), 0.5f);
  std::atomic<int64_t> done = -1;
  const auto values = oracle(llama, problem, input, -1, 1, {}, nullptr, &done);
  ASSERT_TRUE(values.ok()) << values.status().message();
  EXPECT_EQ(done, 3);
  std::stop_source stop;
  stop.request_stop();
  done = 0;
  EXPECT_EQ(oracle(llama, problem, input, -1, 1, stop.get_token(), nullptr, &done).status().code(), Errc::aborted);
  EXPECT_EQ(done, 0);
}

}  // namespace
}  // namespace overlace::model
