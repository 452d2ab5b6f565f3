#include "src/model/config.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "tests/unit/model/scratch_dir.h"

namespace overlace::model {
namespace {

const char kLlama[] = R"("model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
  "num_attention_heads": 4, "num_key_value_heads": 2)";
const char kGpt2[] = R"("model_type": "gpt2", "n_embd": 48, "n_layer": 2, "n_head": 3)";

std::string object(const std::string& members, const std::string& more = "") {
  return "{" + members + (more.empty() ? "" : ", " + more) + "}";
}
std::string of_type(const std::string& type, const std::string& more = "") {
  std::string text = object(kLlama, more);
  return text.replace(text.find("\"llama\""), 7, "\"" + type + "\"");
}
ModelConfig parsed(const std::string& json) {
  auto config = parse_config(json, "test.json");
  EXPECT_TRUE(config.ok()) << config.status().message();
  return config.ok() ? config.value() : ModelConfig{};
}

TEST(ConfigTest, ReadsLlama) {
  const ModelConfig c = parsed(object(kLlama, R"("rms_norm_eps": 1e-5, "rope_theta": 500000.0, "hidden_act": "silu")"));
  EXPECT_EQ(c.hidden, 64);
  EXPECT_EQ(c.intermediate, 96);
  EXPECT_EQ(c.layers, 3);
  EXPECT_EQ(c.heads, 4);
  EXPECT_EQ(c.kv_heads, 2);
  EXPECT_EQ(c.head_dim, 16);
  EXPECT_EQ(c.norm_eps, 1e-5);
  EXPECT_EQ(c.rope_theta, 500000.0);
  EXPECT_EQ(c.rope_scaling.kind, RopeScaling::Kind::none);
  EXPECT_TRUE(c.gated());
  EXPECT_FALSE(c.qkv_bias || c.o_bias || c.mlp_bias || c.qk_norm || c.conv1d_weights);
}

TEST(ConfigTest, KvHeadsDefaultToHeadsAndNullHeadDimIsDerived) {
  const ModelConfig c = parsed(R"({"model_type": "llama", "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 1, "num_attention_heads": 8, "num_key_value_heads": null, "head_dim": null})");
  EXPECT_EQ(c.kv_heads, 8);
  EXPECT_EQ(c.head_dim, 8);
}

TEST(ConfigTest, ReadsRopeScalingInItsThreeForms) {
  const char* llama3 = R"("rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 4096}, "rope_theta": 5e5)";
  ModelConfig c = parsed(object(kLlama, llama3));
  EXPECT_EQ(c.rope_scaling.kind, RopeScaling::Kind::llama3);
  EXPECT_EQ(c.rope_scaling.factor, 8);
  EXPECT_EQ(c.rope_scaling.original_max_position, 4096);
  c = parsed(object(kLlama, R"("rope_scaling": {"type": "linear", "factor": 2.5})"));
  EXPECT_EQ(c.rope_scaling.kind, RopeScaling::Kind::linear);
  EXPECT_EQ(c.rope_scaling.factor, 2.5);
  c = parsed(object(kLlama, R"("rope_parameters": {"rope_type": "linear", "factor": 4, "rope_theta": 12345.0})"));
  EXPECT_EQ(c.rope_scaling.kind, RopeScaling::Kind::linear);
  EXPECT_EQ(c.rope_theta, 12345.0);
  c = parsed(object(kLlama, R"("rope_parameters": {"rope_type": "default", "rope_theta": 777.0})"));
  EXPECT_EQ(c.rope_scaling.kind, RopeScaling::Kind::none);
  EXPECT_EQ(c.rope_theta, 777.0);
}

TEST(ConfigTest, BiasesFollowTheFamily) {
  ModelConfig c = parsed(of_type("qwen2"));
  EXPECT_TRUE(c.qkv_bias);
  EXPECT_FALSE(c.o_bias || c.mlp_bias || c.qk_norm);
  c = parsed(of_type("qwen3", R"("head_dim": 40)"));
  EXPECT_TRUE(c.qk_norm);
  EXPECT_FALSE(c.qkv_bias);
  EXPECT_EQ(c.head_dim, 40);
  c = parsed(object(kLlama, R"("attention_bias": true, "mlp_bias": true)"));
  EXPECT_TRUE(c.qkv_bias && c.o_bias && c.mlp_bias);
}

TEST(ConfigTest, SlidingWindowMayBeNullOrComeFromLayerTypes) {
  EXPECT_EQ(parsed(of_type("mistral", R"("sliding_window": 4096)")).sliding_window, 4096);
  EXPECT_EQ(parsed(of_type("mistral", R"("sliding_window": null)")).sliding_window, 0);
  EXPECT_EQ(parsed(of_type("mistral")).sliding_window, 0);
  EXPECT_EQ(parsed(of_type("qwen2", R"("sliding_window": 4096, "use_sliding_window": false)")).sliding_window, 0);
  EXPECT_EQ(parsed(of_type("qwen2", R"("sliding_window": 9, "use_sliding_window": true, "layer_types":
    ["sliding_attention", "sliding_attention", "sliding_attention"])"))
                .sliding_window,
            9);
  EXPECT_EQ(parsed(of_type("qwen3", R"("sliding_window": null, "layer_types":
    ["full_attention", "full_attention", "full_attention"])"))
                .sliding_window,
            0);
}

TEST(ConfigTest, ReadsGpt2) {
  ModelConfig c = parsed(object(kGpt2, R"("n_inner": null, "layer_norm_epsilon": 1e-6)"));
  EXPECT_EQ(c.hidden, 48);
  EXPECT_EQ(c.kv_heads, 3);
  EXPECT_EQ(c.head_dim, 16);
  EXPECT_EQ(c.intermediate, 192);
  EXPECT_EQ(c.norm, Norm::layer);
  EXPECT_EQ(c.positions, Positions::none);
  EXPECT_EQ(c.activation, Activation::gelu_tanh);
  EXPECT_TRUE(c.qkv_bias && c.o_bias && c.mlp_bias && c.conv1d_weights);
  EXPECT_EQ(parsed(object(kGpt2, R"("activation_function": "gelu")")).activation, Activation::gelu_erf);
  EXPECT_EQ(parsed(object(kGpt2, R"("activation_function": "relu")")).activation, Activation::relu);
}

TEST(ConfigTest, ReadsMixtralsExperts) {
  const char* keys = R"("num_local_experts": 6, "num_experts_per_tok": 2)";
  const ModelConfig c = parsed(of_type("mixtral", keys));
  EXPECT_TRUE(c.has_experts());
  EXPECT_EQ(c.experts.count, 6);
  EXPECT_EQ(c.experts.per_token, 2);
  EXPECT_EQ(c.experts.intermediate, 96);
  EXPECT_EQ(c.intermediate, 0);
  EXPECT_TRUE(c.experts.renormalize);
  EXPECT_TRUE(parsed(of_type("mixtral", std::string(keys) + R"(, "norm_topk_prob": true)")).has_experts());
  for (const auto& [text, key] : std::map<std::string, std::string>{
           {object(kLlama, keys), "num_local_experts"},
           {object(kLlama, R"("num_experts": 8)"), "num_experts"},
           {of_type("mixtral", std::string(keys) + R"(, "norm_topk_prob": false)"), "norm_topk_prob"},
           {of_type("mixtral", std::string(keys) + R"(, "n_shared_experts": 1)"), "n_shared_experts"},
           {of_type("mixtral", std::string(keys) + R"(, "moe_intermediate_size": 8)"), "moe_intermediate_size"}}) {
    const auto got = parse_config(text, "test.json");
    ASSERT_FALSE(got.ok()) << text;
    EXPECT_EQ(got.status().code(), Errc::not_supported);
    EXPECT_NE(got.status().message().find("key \"" + key + "\" is "), std::string::npos) << got.status().message();
  }
  for (const auto& [bad, message] : std::map<std::string, std::string>{
           {R"("num_experts_per_tok": 2)", "num_local_experts\" is missing, wanted an integer from 1 to 8192"},
           {R"("num_local_experts": 6, "num_experts_per_tok": 7)", "is 7, wanted at most num_local_experts 6"},
           {R"("num_local_experts": 6, "num_experts_per_tok": 33)", "is 33, wanted an integer from 1 to 32"},
       }) {
    const auto got = parse_config(of_type("mixtral", bad), "test.json");
    ASSERT_FALSE(got.ok()) << bad;
    EXPECT_EQ(got.status().code(), Errc::invalid_argument);
    EXPECT_NE(got.status().message().find(message), std::string::npos) << got.status().message();
  }
}

TEST(ConfigTest, ShippedOnesHaveTheirPublishedShapes) {
  const std::vector<std::string> names = shipped_configs();
  ASSERT_GE(names.size(), 7u);
  EXPECT_EQ(names.front(), "tiny");
  for (const std::string& name : names) {
    const auto c = load_config(name, name == "DeepSeek-V3" ? Part::moe : Part::all);
    ASSERT_TRUE(c.ok()) << c.status().message();
    EXPECT_EQ(c->name, name);
  }
  const ModelConfig llama = load_config("Llama-3.1-70B").value();
  EXPECT_EQ(llama.hidden, 8192);
  EXPECT_EQ(llama.intermediate, 28672);
  EXPECT_EQ(llama.kv_heads, 8);
  EXPECT_EQ(llama.rope_scaling.kind, RopeScaling::Kind::llama3);
  EXPECT_EQ(load_config("Mistral-7B-v0.1").value().sliding_window, 4096);
  EXPECT_EQ(load_config("Qwen3-32B").value().head_dim, 128);  // not hidden / heads = 80
  const ModelConfig gpt3 = load_config("GPT-3-175B").value();
  EXPECT_EQ(gpt3.hidden, 12288);
  EXPECT_EQ(gpt3.head_dim, 128);
  EXPECT_EQ(gpt3.norm, Norm::layer);
}

TEST(ConfigTest, LoadsAFileOrADirectory) {
  const ScratchDir dir;
  dir.write("config.json", object(kLlama));
  EXPECT_EQ(load_config(dir / "config.json").value().hidden, 64);
  EXPECT_EQ(load_config(dir.path()).value().hidden, 64);
}

struct BadConfig {
  const char* what;
  std::string json;
  Errc code;
  std::string text;  // part of the message
};

class BadConfigTest : public ::testing::TestWithParam<BadConfig> {};

TEST_P(BadConfigTest, IsRefusedWithKeyGotAndWanted) {
  const auto config = parse_config(GetParam().json, "bad.json");
  ASSERT_FALSE(config.ok());
  EXPECT_EQ(config.status().code(), GetParam().code) << config.status().message();
  EXPECT_NE(config.status().message().find(GetParam().text), std::string::npos) << config.status().message();
  EXPECT_NE(config.status().message().find("bad.json"), std::string::npos) << config.status().message();
}

std::string deep(int levels) { return "{\"model_type\": " + std::string(levels, '[') + std::string(levels, ']') + "}"; }
/// kLlama with one member's value replaced.
std::string replaced(const std::string& key, const std::string& value) {
  std::string text = object(kLlama);
  const size_t begin = text.find("\"" + key + "\": ") + key.size() + 4;
  const size_t end = text.find_first_of(",}", begin);
  return text.replace(begin, end - begin, value);
}

const BadConfig kBadConfigs[] = {
    {"Empty", "", Errc::corrupt, "line 1"},
    {"Truncated", R"({"model_type": "llama", "hidden_size")", Errc::corrupt, "line 1"},
    {"Array", "[1, 2]", Errc::corrupt, "an array, wanted an object"},
    {"Deep", deep(5000), Errc::corrupt, "nested deeper"},
    {"NanLiteral", replaced("hidden_size", "NaN"), Errc::corrupt, "line 1"},
    {"KeyTwice", object(kLlama, R"("hidden_size": 128)"), Errc::corrupt, "occurs twice"},
    {"NoType", R"({"hidden_size": 64})", Errc::invalid_argument, "\"model_type\" is missing"},
    {"TypeNumber", R"({"model_type": 5})", Errc::invalid_argument, "\"model_type\" is 5, wanted a string"},
    {"OtherModel", of_type("mamba"), Errc::not_supported, "\"model_type\" is \"mamba\"; supported: llama"},
    {"HiddenMissing", R"({"model_type": "llama"})", Errc::invalid_argument, "\"hidden_size\" is missing"},
    {"HiddenZero", replaced("hidden_size", "0"), Errc::invalid_argument,
     "\"hidden_size\" is 0, wanted an integer from 1"},
    {"HiddenNegative", replaced("hidden_size", "-64"), Errc::invalid_argument, "\"hidden_size\" is -64"},
    {"HiddenHuge", replaced("hidden_size", "9223372036854775807"), Errc::invalid_argument, "to 1048576"},
    {"HiddenFloat", replaced("hidden_size", "64.5"), Errc::invalid_argument, "\"hidden_size\" is 64.5"},
    {"HiddenText", replaced("hidden_size", "\"64\""), Errc::invalid_argument, "\"hidden_size\" is \"64\""},
    {"HeadsDoNotDivide", replaced("num_attention_heads", "5"), Errc::invalid_argument,
     "\"hidden_size\" is 64, wanted a multiple of num_attention_heads 5"},
    {"KvHeadsDoNotDivide", replaced("num_key_value_heads", "3"), Errc::invalid_argument,
     "\"num_attention_heads\" is 4, wanted a multiple of num_key_value_heads 3"},
    {"OddHeadDim", object(kLlama, R"("head_dim": 7)"), Errc::invalid_argument, "head dimension is 7"},
    {"HugeHeadDim", object(kLlama, R"("head_dim": 4096)"), Errc::invalid_argument, "\"head_dim\" is 4096"},
    {"EpsZero", object(kLlama, R"("rms_norm_eps": 0)"), Errc::invalid_argument, "\"rms_norm_eps\" is 0"},
    {"EpsInfinite", object(kLlama, R"("rms_norm_eps": "inf")"), Errc::invalid_argument, "\"rms_norm_eps\" is \"inf\""},
    {"Activation", object(kLlama, R"("hidden_act": "gelu")"), Errc::not_supported, "\"hidden_act\" is \"gelu\""},
    {"BiasNumber", object(kLlama, R"("attention_bias": 1)"), Errc::invalid_argument, "wanted true or false"},
    {"Quantized", object(kLlama, R"("quantization_config": {"bits": 4})"), Errc::not_supported, "quantization_config"},
    {"RopeYarn", object(kLlama, R"("rope_scaling": {"rope_type": "yarn", "factor": 2})"), Errc::not_supported,
     "\"rope_scaling.rope_type\" is \"yarn\"; supported: default, linear, llama3"},
    {"RopeText", object(kLlama, R"("rope_scaling": "linear")"), Errc::invalid_argument, "wanted an object or null"},
    {"RopeNoFactor", object(kLlama, R"("rope_scaling": {"rope_type": "linear"})"), Errc::invalid_argument,
     "\"rope_scaling.factor\" is missing"},
    {"RopeSmallFactor", object(kLlama, R"("rope_scaling": {"rope_type": "linear", "factor": 0.5})"),
     Errc::invalid_argument, "\"rope_scaling.factor\" is 0.5"},
    {"RopeBands", object(kLlama, R"("rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4,
      "high_freq_factor": 1, "original_max_position_embeddings": 8192})"),
     Errc::invalid_argument, "high_freq_factor"},
    {"RopeTwoThetas", object(kLlama, R"("rope_theta": 1e4, "rope_parameters": {"rope_theta": 5e5})"),
     Errc::invalid_argument, "\"rope_parameters.rope_theta\" is 500000"},
    {"RopeTwoKinds", object(kLlama, R"("rope_scaling": {"type": "linear", "factor": 2},
      "rope_parameters": {"rope_type": "default"})"),
     Errc::invalid_argument, "differ"},
    {"RopePerLayerType", object(kLlama, R"("rope_parameters": {"full_attention": {"rope_theta": 1e4}})"),
     Errc::not_supported, "rope_parameters"},
    {"RopePartial", object(kLlama, R"("partial_rotary_factor": 0.5)"), Errc::not_supported, "partial_rotary_factor"},
    {"WindowNegative", of_type("mistral", R"("sliding_window": -1)"), Errc::invalid_argument,
     "\"sliding_window\" is -1"},
    {"WindowSomeLayers", of_type("qwen2", R"("sliding_window": 8, "use_sliding_window": true)"), Errc::not_supported,
     "use_sliding_window"},
    {"LayerTypesMixed", of_type("qwen3", R"("layer_types": ["full_attention", "sliding_attention", "full_attention"])"),
     Errc::not_supported, "layer_types"},
    {"LayerTypesCount", of_type("qwen3", R"("layer_types": ["full_attention"])"), Errc::invalid_argument,
     "has 1 entries, wanted num_hidden_layers = 3"},
    {"LayerTypesUnknown", of_type("qwen3", R"("layer_types": ["x", "x", "x"])"), Errc::not_supported, "layer_types"},
    {"LayerTypesNumbers", of_type("qwen3", R"("layer_types": [1, 2, 3])"), Errc::invalid_argument, "array of strings"},
    {"Gpt2Heads", R"({"model_type": "gpt2", "n_embd": 48, "n_layer": 2, "n_head": 5})", Errc::invalid_argument,
     "\"n_embd\" is 48, wanted a multiple of n_head 5"},
    {"Gpt2Activation", object(kGpt2, R"("activation_function": "mish")"), Errc::not_supported, "gelu_new"},
    {"Gpt2Unscaled", object(kGpt2, R"("scale_attn_weights": false)"), Errc::not_supported,
     "\"scale_attn_weights\" is false; supported: true"},
    {"Gpt2LayerScale", object(kGpt2, R"("scale_attn_by_inverse_layer_idx": true)"), Errc::not_supported,
     "inverse_layer"},
};

INSTANTIATE_TEST_SUITE_P(All, BadConfigTest, ::testing::ValuesIn(kBadConfigs),
                         [](const auto& test) { return std::string(test.param.what); });

TEST(ConfigTest, FilesThatCannotBeReadAreNamed) {
  auto c = load_config("no-such-model");
  EXPECT_EQ(c.status().code(), Errc::invalid_argument);
  EXPECT_NE(c.status().message().find("Llama-3.1-8B"), std::string::npos) << c.status().message();
  c = load_config("/no/such/config.json");
  EXPECT_EQ(c.status().code(), Errc::io);
  const ScratchDir dir;
  c = load_config(dir.path());
  EXPECT_EQ(c.status().code(), Errc::io);
  EXPECT_NE(c.status().message().find("config.json"), std::string::npos);
  c = load_config(dir.write("big.json", std::string((1 << 20) + 1, ' ')));
  EXPECT_EQ(c.status().code(), Errc::corrupt);
  EXPECT_NE(c.status().message().find("more than 1048576 bytes"), std::string::npos);
}

}  // namespace
}  // namespace overlace::model
