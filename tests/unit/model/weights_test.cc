#include "src/model/weights.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "src/base/half.h"
#include "tests/unit/model/safetensors_writer.h"
#include "tests/unit/model/scratch_dir.h"

namespace overlace::model {
namespace {

ModelConfig config_from(const char* json) { return parse_config(json, "test.json").value(); }
const char kQwen[] = R"({"model_type": "qwen3", "hidden_size": 32, "intermediate_size": 24, "num_hidden_layers": 2,
  "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6})";
const char kGpt[] = R"({"model_type": "gpt2", "n_embd": 4, "n_layer": 1, "n_head": 2, "n_inner": 6})";

TEST(SeededTest, HasMeanZeroVarianceOneAndNoObviousCorrelation) {
  const int64_t n = 1 << 20;
  double sum = 0, squares = 0, fourth = 0, neighbours = 0, rows = 0, last = 0;
  const uint64_t key = row_key(tensor_key(1, 2), 3), next = row_key(tensor_key(1, 2), 4);
  for (int64_t i = 0; i < n; ++i) {
    const double x = static_cast<double>(normal_at(key, i));
    sum += x;
    squares += x * x;
    fourth += x * x * x * x;
    neighbours += x * last;
    rows += x * static_cast<double>(normal_at(next, i));
    last = x;
  }
  const double count = static_cast<double>(n), sigma = 1 / std::sqrt(count);
  EXPECT_LT(std::abs(sum / count), 5 * sigma);
  EXPECT_NEAR(squares / count, 1, 5 * std::sqrt(2.0) * sigma);
  EXPECT_NEAR(fourth / count, 2.9, 0.05);  // of twelve uniform numbers; 3 of a normal one
  EXPECT_LT(std::abs(neighbours / count), 5 * sigma);
  EXPECT_LT(std::abs(rows / count), 5 * sigma);
}

TEST(SeededTest, ValuesAreFixedForever) {
  // Literals: another machine, compiler or version must make the same bits.
  constexpr float a = normal_at(row_key(tensor_key(0, 0), 0), 0);
  constexpr float b = normal_at(row_key(tensor_key(42, 7), 1000), 12345);
  EXPECT_EQ(a, -0x1.59bp-2f);
  EXPECT_EQ(b, 0x1.6ca8p-1f);
}

TEST(SeededTest, SeedTensorRowAndColumnAllMatter) {
  std::set<float> values;
  for (uint64_t seed : {0, 1})
    for (uint64_t tensor : {0, 1})
      for (int64_t row : {0, 1})
        for (int64_t col : {0, 1}) values.insert(normal_at(row_key(tensor_key(seed, tensor), row), col));
  EXPECT_EQ(values.size(), 16u);
}

TEST(WeightsTest, AnyPartEqualsThatPartOfTheWhole) {
  const ModelConfig c = config_from(kQwen);
  Problem p;
  p.seed = 9;
  auto weights = Weights::open(c, p).value();
  ASSERT_TRUE(weights.is_seeded());
  std::vector<float> whole(24 * 32), part(5 * 7);
  ASSERT_TRUE(weights.read(1, Weight::gate, {0, 24, 0, 32}, whole.data()).ok());
  ASSERT_TRUE(weights.read(1, Weight::gate, {11, 5, 13, 7}, part.data()).ok());
  for (size_t i = 0; i < 5; ++i)
    for (size_t j = 0; j < 7; ++j) EXPECT_EQ(part[i * 7 + j], whole[(11 + i) * 32 + 13 + j]) << i << ", " << j;
}

TEST(WeightsTest, ScalesAreThoseOfTheirKind) {
  const ModelConfig c = config_from(kQwen);
  auto weights = Weights::open(c, Problem{}).value();
  EXPECT_FLOAT_EQ(weights.seeded(0, Weight::q, {}).scale, 1 / std::sqrt(32.0f));
  EXPECT_FLOAT_EQ(weights.seeded(0, Weight::down, {}).scale, 1 / std::sqrt(24.0f));
  EXPECT_EQ(weights.seeded(0, Weight::q, {}).offset, 0);
  EXPECT_EQ(weights.seeded(0, Weight::norm1, {}).offset, 1);
  EXPECT_EQ(weights.seeded(0, Weight::q_bias, {}).offset, 0);
  EXPECT_NE(weights.seeded(0, Weight::q, {}).key, weights.seeded(1, Weight::q, {}).key);
  EXPECT_NE(weights.seeded(0, Weight::q, {}).key, weights.seeded(0, Weight::k, {}).key);
}

TEST(WeightsTest, SixteenBitPartsAreTheRoundedOnes) {
  Problem p;
  p.dtype = DType::bf16;
  const ModelConfig c = config_from(kQwen);
  auto weights = Weights::open(c, p).value();
  std::vector<uint16_t> rounded(24 * 32);
  std::vector<float> plain(24 * 32);
  ASSERT_TRUE(weights.read(0, Weight::up, {0, 24, 0, 32}, rounded.data()).ok());
  p.dtype = DType::fp32;
  ASSERT_TRUE(Weights::open(c, p).value().read(0, Weight::up, {0, 24, 0, 32}, plain.data()).ok());
  for (size_t i = 0; i < plain.size(); ++i) EXPECT_EQ(rounded[i], base::float_to_bf16(plain[i])) << i;
}

TEST(WeightsTest, SeededInputDoesNotDependOnTheSplit) {
  std::vector<float> whole(10 * 6), part(3 * 6);
  seeded_input(5, 0, 10, 6, whole.data());
  seeded_input(5, 4, 3, 6, part.data());
  for (size_t i = 0; i < part.size(); ++i) EXPECT_EQ(part[i], whole[4 * 6 + i]);
}

std::string zeros(size_t n) { return std::string(n * 4, '\0'); }
/// Element i of the stored tensor is i.
std::string counting_bytes(int64_t n) {
  std::vector<float> values;
  for (int64_t i = 0; i < n; ++i) values.push_back(static_cast<float>(i));
  return fp32_bytes(values);
}

TEST(WeightsTest, Gpt2TransposesAndSplitsTheFusedProjection) {
  const ScratchDir dir;
  dir.write("model.safetensors", safetensors({{"h.0.ln_1.weight", "F32", {4}, zeros(4)},
                                              {"h.0.attn.c_attn.weight", "F32", {4, 12}, counting_bytes(48)},
                                              {"h.0.attn.c_attn.bias", "F32", {12}, counting_bytes(12)},
                                              {"h.0.mlp.c_proj.weight", "F32", {6, 4}, counting_bytes(24)}}));
  const ModelConfig c = config_from(kGpt);
  Problem p;
  p.checkpoint = dir.path();
  auto weights = Weights::open(c, p);
  ASSERT_TRUE(weights.ok()) << weights.status().message();
  std::vector<float> out(6);
  // Rows 2 and 3 of k, columns 1 to 3: stored at (in, hidden + out).
  ASSERT_TRUE(weights->read(0, Weight::k, {2, 2, 1, 3}, out.data()).ok());
  EXPECT_EQ(out, (std::vector<float>{12 + 6, 24 + 6, 36 + 6, 12 + 7, 24 + 7, 36 + 7}));
  ASSERT_TRUE(weights->read(0, Weight::v_bias, {0, 1, 2, 2}, out.data()).ok());
  EXPECT_EQ(out[0], 10);
  EXPECT_EQ(out[1], 11);
  // Row 3 of down, columns 2 to 4: stored (intermediate, hidden).
  ASSERT_TRUE(weights->read(0, Weight::down, {3, 1, 2, 3}, out.data()).ok());
  EXPECT_EQ(out[0], 2 * 4 + 3);
  EXPECT_EQ(out[1], 3 * 4 + 3);
  EXPECT_EQ(out[2], 4 * 4 + 3);
}

TEST(WeightsTest, ReadsBothPrefixesAndRefusesOtherModels) {
  const ModelConfig c = config_from(kQwen);
  for (const char* prefix : {"model.layers.0.", "layers.0."}) {
    const ScratchDir dir;
    dir.write("model.safetensors",
              safetensors({{std::string(prefix) + "input_layernorm.weight", "F32", {32}, zeros(32)},
                           {std::string(prefix) + "self_attn.q_norm.weight", "F32", {6}, counting_bytes(6)}}));
    Problem p;
    p.checkpoint = dir.path();
    auto weights = Weights::open(c, p);
    ASSERT_TRUE(weights.ok()) << weights.status().message();
    std::vector<float> out(6);
    ASSERT_TRUE(weights->read(0, Weight::q_norm, {0, 1, 0, 6}, out.data()).ok());
    EXPECT_EQ(out[5], 5);
    const auto missing = weights->read(0, Weight::q, {0, 24, 0, 32}, out.data());
    EXPECT_EQ(missing.code(), Errc::corrupt);
    EXPECT_NE(missing.message().find(std::string(prefix) + "self_attn.q_proj.weight"), std::string::npos);
    const auto other = Weights::open(config_from(kGpt), p);
    ASSERT_FALSE(other.ok());
    EXPECT_EQ(other.status().code(), Errc::corrupt);
    EXPECT_NE(other.status().message().find("wanted a gpt2 model"), std::string::npos) << other.status().message();
  }
}

}  // namespace
}  // namespace overlace::model
