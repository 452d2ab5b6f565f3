#include "src/model/sharding.h"

#include <gtest/gtest.h>

namespace overlace::model {
namespace {

ModelConfig config_of(int64_t heads, int64_t kv_heads, int64_t intermediate) {
  ModelConfig c;
  c.name = "test";
  c.model_type = "llama";
  c.hidden = 64;
  c.layers = 2;
  c.heads = heads;
  c.kv_heads = kv_heads;
  c.head_dim = 8;
  c.intermediate = intermediate;
  return c;
}
Problem problem_of(int64_t tokens, int64_t length) {
  Problem p;
  p.tokens = tokens;
  p.sequence_length = length;
  return p;
}

TEST(ShardingTest, TokenRowsAreThoseOfTensorSplit) {
  const std::pair<int64_t, int64_t> want[] = {{0, 3}, {3, 3}, {6, 2}, {8, 2}};
  for (int r = 0; r < 4; ++r) EXPECT_EQ(token_rows(10, r, 4), want[r]);
  EXPECT_EQ(token_rows(2, 3, 4), (std::pair<int64_t, int64_t>{2, 0}));
}

TEST(ShardingTest, EveryHeadAndColumnHasOneOwner) {
  const ModelConfig c = config_of(12, 6, 24);
  for (int ranks : {1, 2, 3, 6}) {
    std::vector<int> heads(12), kv(6), columns(24);
    for (int r = 0; r < ranks; ++r) {
      const Shard s = make_shard(c, problem_of(7, 7), r, ranks).value();
      for (int64_t i = 0; i < s.heads; ++i) ++heads[static_cast<size_t>(s.first_head + i)];
      for (int64_t i = 0; i < s.kv_heads; ++i) ++kv[static_cast<size_t>(s.first_kv_head + i)];
      for (int64_t i = 0; i < s.intermediate; ++i) ++columns[static_cast<size_t>(s.first_intermediate + i)];
    }
    EXPECT_EQ(heads, std::vector<int>(12, 1)) << ranks;
    EXPECT_EQ(kv, std::vector<int>(6, 1)) << ranks;
    EXPECT_EQ(columns, std::vector<int>(24, 1)) << ranks;
  }
}

TEST(ShardingTest, KvHeadsAreReplicatedToTheRanksWhoseQueriesUseThem) {
  const ModelConfig c = config_of(8, 2, 64);
  for (int r = 0; r < 8; ++r) {
    const Shard s = make_shard(c, problem_of(8, 8), r, 8).value();
    EXPECT_EQ(s.heads, 1);
    EXPECT_EQ(s.kv_heads, 1);
    EXPECT_EQ(s.first_kv_head, r / 4) << r;
  }
  EXPECT_EQ(make_shard(c, problem_of(8, 8), 3, 4).value().first_kv_head, 1);
}

TEST(ShardingTest, SitesAreThoseOfTheFamily) {
  ModelConfig c = config_of(8, 4, 48);
  std::vector<Site> s = sites(c, problem_of(32, 16), 2).value();
  ASSERT_EQ(s.size(), 4u);
  EXPECT_EQ(s[0].name, "qkv");
  EXPECT_EQ(s[0].op.to_string(), "ag_gemm M 32 N 64 K 64 G 2 fp32");
  EXPECT_EQ(s[1].name, "o_proj");
  EXPECT_EQ(s[1].op.to_string(), "gemm_rs M 32 N 64 K 32 G 2 fp32");
  EXPECT_EQ(s[2].name, "gate_up");
  EXPECT_EQ(s[2].op.to_string(), "ag_gemm M 32 N 48 K 64 G 2 fp32");
  EXPECT_EQ(s[3].name, "down");
  EXPECT_EQ(s[3].op.to_string(), "gemm_rs M 32 N 64 K 24 G 2 fp32");
  c.activation = Activation::gelu_tanh;
  c.mlp_bias = true;
  s = sites(c, problem_of(32, 16), 2).value();
  EXPECT_EQ(s[2].name, "fc1");
  EXPECT_EQ(s[2].op.n, 24);
  EXPECT_TRUE(s[2].op.bias);
  EXPECT_FALSE(s[0].op.bias);
  EXPECT_EQ(s[3].name, "fc2");
}

struct BadSplit {
  const char* what;
  ModelConfig config;
  Problem problem;
  int ranks;
  Errc code;
  std::string text;
};
class BadSplitTest : public ::testing::TestWithParam<BadSplit> {};

TEST_P(BadSplitTest, NamesBothNumbers) {
  const auto result = sites(GetParam().config, GetParam().problem, GetParam().ranks);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), GetParam().code);
  EXPECT_NE(result.status().message().find(GetParam().text), std::string::npos) << result.status().message();
}

Problem with(Problem p, int64_t layers, DType dtype) {
  p.layers = layers;
  p.dtype = dtype;
  return p;
}

const BadSplit kBadSplits[] = {
    {"Heads", config_of(8, 4, 48), problem_of(8, 8), 3, Errc::invalid_argument, "8 attention heads, which 3 ranks"},
    {"KvHeads", config_of(12, 3, 48), problem_of(8, 8), 4, Errc::invalid_argument, "3 KV heads, which 4 ranks"},
    {"Intermediate", config_of(8, 8, 50), problem_of(8, 8), 4, Errc::invalid_argument,
     "intermediate size 50, which 4 ranks"},
    {"NoTokens", config_of(8, 4, 48), problem_of(0, 1), 1, Errc::invalid_argument, "tokens is 0, wanted 1"},
    {"NegativeTokens", config_of(8, 4, 48), problem_of(-5, 1), 1, Errc::invalid_argument, "tokens is -5"},
    {"ManyTokens", config_of(8, 4, 48), problem_of(int64_t{1} << 40, 1), 1, Errc::invalid_argument,
     "tokens is 1099511627776"},
    {"Sequence", config_of(8, 4, 48), problem_of(10, 4), 1, Errc::invalid_argument,
     "sequence_length is 4, wanted a divisor of tokens 10"},
    {"NoSequence", config_of(8, 4, 48), problem_of(10, 0), 1, Errc::invalid_argument, "sequence_length is 0"},
    {"ManyLayers", config_of(8, 4, 48), with(problem_of(8, 8), 3, DType::fp32), 1, Errc::invalid_argument,
     "layers is 3, wanted 1 to 2"},
    {"NoLayers", config_of(8, 4, 48), with(problem_of(8, 8), 0, DType::fp32), 1, Errc::invalid_argument, "layers is 0"},
    {"Dtype", config_of(8, 4, 48), with(problem_of(8, 8), 1, DType::e4m3), 1, Errc::not_supported,
     "dtype is e4m3, supported: fp32"},
    {"NoRanks", config_of(8, 4, 48), problem_of(8, 8), 0, Errc::invalid_argument,
     "rank is 0 of 0 ranks, wanted 0 <= rank < ranks"},
};
INSTANTIATE_TEST_SUITE_P(All, BadSplitTest, ::testing::ValuesIn(kBadSplits),
                         [](const auto& test) { return std::string(test.param.what); });

}  // namespace
}  // namespace overlace::model
