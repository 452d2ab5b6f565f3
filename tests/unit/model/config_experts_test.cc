// Keys of models whose layers have experts, or some of them.
#include <gtest/gtest.h>

#include <map>

#include "src/model/sharding.h"
#include "src/model/weights.h"

namespace overlace::model {
namespace {

std::string qwen(const char* type, const std::string& more, int layers = 4) {
  return base::format(R"({{"model_type": "{}", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": {},
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 40, "num_experts_per_tok": 3, {}}})",
                      type, layers, more);
}

ModelConfig read(const std::string& json) {
  auto config = parse_config(json, "test.json");
  EXPECT_TRUE(config.ok()) << config.status().message();
  return config.ok() ? config.value() : ModelConfig{};
}

TEST(ConfigExperts, ReadsQwen3Moe) {
  const ModelConfig c = read(qwen("qwen3_moe", R"("num_experts": 6, "norm_topk_prob": true)"));
  EXPECT_EQ(c.experts.count, 6);
  EXPECT_EQ(c.experts.per_token, 3);
  EXPECT_EQ(c.experts.intermediate, 24);
  EXPECT_EQ(c.experts.shared, 0) << "a key of qwen2_moe";
  EXPECT_TRUE(c.experts.renormalize);
  EXPECT_TRUE(c.qk_norm);
  EXPECT_FALSE(c.qkv_bias || c.o_bias || c.mlp_bias);
  EXPECT_EQ(c.head_dim, 32);
  EXPECT_EQ(c.intermediate, 0) << "all layers have experts";
  EXPECT_EQ(c.sliding_window, 0);
  EXPECT_FALSE(read(qwen("qwen3_moe", R"("num_experts": 6)")).experts.renormalize);
  EXPECT_EQ(read(qwen("qwen3_moe", R"("num_local_experts": 7)")).experts.count, 7);
  const ModelConfig biased = read(qwen("qwen3_moe", R"("num_experts": 6, "attention_bias": true)"));
  EXPECT_TRUE(biased.qkv_bias && biased.o_bias);
}

TEST(ConfigExperts, ReadsQwen2Moe) {
  const ModelConfig c =
      read(qwen("qwen2_moe", R"("num_experts": 6, "sliding_window": 0, "use_sliding_window": false)"));
  EXPECT_EQ(c.experts.shared, 40);
  EXPECT_FALSE(c.experts.renormalize);
  EXPECT_TRUE(c.qkv_bias);
  EXPECT_FALSE(c.o_bias || c.qk_norm || c.mlp_bias);
  EXPECT_FALSE(read(qwen("qwen2_moe", R"("num_experts": 6, "qkv_bias": false)")).qkv_bias);
}

TEST(ConfigExperts, LayersMayDiffer) {
  const auto layers = [](const std::string& more) {
    const ModelConfig c = read(qwen("qwen3_moe", "\"num_experts\": 6" + more));
    std::string out;
    for (int64_t layer = 0; layer < c.layers; ++layer) {
      out += c.has_experts(layer) ? 'e' : 'd';
      EXPECT_EQ(has_weight(c, Weight::router, layer), c.has_experts(layer));
      EXPECT_EQ(has_weight(c, Weight::gate, layer), !c.has_experts(layer));
      EXPECT_EQ(has_weight(c, Weight::down, layer), !c.has_experts(layer));
      EXPECT_FALSE(has_weight(c, Weight::shared_up, layer));
    }
    EXPECT_EQ(c.intermediate, out.find('d') == std::string::npos ? 0 : 96);
    return out;
  };
  EXPECT_EQ(layers(""), "eeee");
  EXPECT_EQ(layers(R"(, "mlp_only_layers": null)"), "eeee");
  EXPECT_EQ(layers(R"(, "mlp_only_layers": [])"), "eeee");
  EXPECT_EQ(layers(R"(, "mlp_only_layers": [0, 2])"), "dede");
  EXPECT_EQ(layers(R"(, "decoder_sparse_step": 2)"), "dede");
  EXPECT_EQ(layers(R"(, "decoder_sparse_step": 2, "mlp_only_layers": [3])"), "dedd");
  EXPECT_EQ(layers(R"(, "decoder_sparse_step": 3)"), "dded");
  EXPECT_EQ(layers(R"(, "mlp_only_layers": [4, 1, -1])"), "edee") << "what is not there is nothing";
}

TEST(ConfigExperts, NoneAtAllIsADenseModel) {
  for (const char* type : {"qwen2_moe", "qwen3_moe"})
    for (const char* key : {"num_experts", "num_local_experts"}) {
      const ModelConfig c = read(qwen(type, base::format("\"{}\": 0, \"mlp_only_layers\": [1]", key)));
      EXPECT_FALSE(c.has_experts());
      EXPECT_EQ(c.expert_layers(4), 0);
      EXPECT_EQ(c.intermediate, 96);
      EXPECT_TRUE(has_weight(c, Weight::gate, 0));
      EXPECT_FALSE(has_weight(c, Weight::shared_up, 0));
    }
}

TEST(ConfigExperts, MissingKeysAreAsInTransformers) {
  struct Absent {
    const char *type, *experts;
    int64_t kv_heads;
    double rope_theta, norm_eps;
  };
  for (const Absent& a :
       {Absent{"mixtral", "num_local_experts", 8, 1e6, 1e-5}, Absent{"qwen2_moe", "num_experts", 16, 1e4, 1e-6},
        Absent{"qwen3_moe", "num_experts", 4, 1e4, 1e-6}}) {
    const auto with = [&](const std::string& more) {
      return read(base::format(R"({{"model_type": "{}", "hidden_size": 64, "intermediate_size": 96,
          "num_hidden_layers": 1, "num_attention_heads": 32, "head_dim": 2, "{}": 6, "num_experts_per_tok": 3{}{}}})",
                               a.type, a.experts, more, a.kv_heads == 8 ? "" : R"(, "moe_intermediate_size": 24,
                                                     "shared_expert_intermediate_size": 40)"));
    };
    const ModelConfig c = with("");
    EXPECT_EQ(c.kv_heads, a.kv_heads) << a.type;
    EXPECT_EQ(c.rope_theta, a.rope_theta) << a.type;
    EXPECT_EQ(c.norm_eps, a.norm_eps) << a.type;
    EXPECT_EQ(with(R"(, "num_key_value_heads": null)").kv_heads, 32) << a.type;
    EXPECT_EQ(with(R"(, "rope_parameters": {"rope_theta": 7.0})").rope_theta, 7.0) << a.type;
  }
}

TEST(ConfigExperts, LayersThatDoNotRunRefuseNothing) {
  const ModelConfig c = read(qwen("qwen3_moe", R"("num_experts": 6, "mlp_only_layers": [0, 1])"));
  Problem problem;
  problem.tokens = problem.sequence_length = 8;
  problem.layers = 2;
  problem.device_bytes = int64_t{1} << 40;
  EXPECT_TRUE(make_shard(c, problem, 0, 2).ok());
  problem.layers = 3;
  EXPECT_EQ(make_shard(c, problem, 0, 2).status().code(), Errc::not_supported);
  // 25 columns of the dense layers behind the first, which two ranks could not share.
  ModelConfig odd = read(qwen("qwen3_moe", R"("num_experts": 6, "mlp_only_layers": [1])"));
  odd.intermediate = 25;
  problem.device_bytes = 0;
  problem.layers = 1;
  ASSERT_TRUE(make_shard(odd, problem, 0, 2).ok());
  EXPECT_EQ(make_shard(odd, problem, 0, 2)->intermediate, 0);
  problem.layers = 2;
  EXPECT_EQ(make_shard(odd, problem, 0, 2).status().code(), Errc::invalid_argument);
}

TEST(ConfigExperts, OnlyLayersWithExpertsHaveTheSharedOne) {
  const ModelConfig c = read(qwen("qwen2_moe", R"("num_experts": 6, "mlp_only_layers": [0])"));
  for (const Weight weight : {Weight::shared_gate, Weight::shared_up, Weight::shared_down, Weight::shared_router}) {
    EXPECT_FALSE(has_weight(c, weight, 0));
    EXPECT_TRUE(has_weight(c, weight, 1));
  }
}

TEST(ConfigExperts, SitesAreThoseOfTheLayersThatRun) {
  Problem problem;
  problem.tokens = problem.sequence_length = 8;
  const auto named = [&](const std::string& more, int64_t layers) {
    problem.layers = layers;
    const std::vector<Site> all = sites(read(qwen("qwen3_moe", "\"num_experts\": 6" + more)), problem, 2).value();
    std::string out;
    for (const Site& s : all) out += base::format("{} {} from {}, ", s.name, s.layers, s.first_layer);
    return out;
  };
  EXPECT_EQ(named("", 3), "qkv 3 from 0, o_proj 3 from 0, ");
  EXPECT_EQ(named(R"(, "mlp_only_layers": [1, 2])", 4),
            "qkv 4 from 0, o_proj 4 from 0, gate_up 2 from 1, down 2 from 1, ");
  EXPECT_EQ(named(R"(, "mlp_only_layers": [1, 2])", 1), "qkv 1 from 0, o_proj 1 from 0, ");
}

TEST(ConfigExperts, NamesKeyAndValueOfWhatIsWrong) {
  for (const auto& [bad, message] : std::map<std::string, std::string>{
           {R"("x": 1)", "key \"num_experts\" is missing, wanted an integer from 1 to 8192"},
           {R"("num_experts": 2)", "key \"num_experts_per_tok\" is 3, wanted at most num_experts 2"},
           {R"("num_experts": 6, "num_local_experts": 7)", "key \"num_local_experts\" is 7, wanted num_experts 6"},
           {R"("num_experts": 6, "norm_topk_prob": 1)", "key \"norm_topk_prob\" is 1, wanted true or false"},
           {R"("num_experts": 6, "decoder_sparse_step": 0)",
            "key \"decoder_sparse_step\" is 0, wanted an integer from 1 to 4096"},
           {R"("num_experts": 6, "mlp_only_layers": 1)",
            "key \"mlp_only_layers\" is 1, wanted an array of layers' numbers"},
           {R"("num_experts": 6, "mlp_only_layers": ["1"])",
            "key \"mlp_only_layers\" is [\"1\"], wanted an array of layers' numbers"},
       }) {
    const auto got = parse_config(qwen("qwen3_moe", bad), "test.json");
    ASSERT_FALSE(got.ok()) << bad;
    EXPECT_EQ(got.status().code(), Errc::invalid_argument);
    EXPECT_EQ(got.status().message(), "test.json: " + message);
  }
  const auto got = parse_config(qwen("qwen2_moe", R"("num_experts": 6, "use_sliding_window": true,
                                                     "sliding_window": 4)"),
                                "test.json");
  ASSERT_FALSE(got.ok());
  EXPECT_EQ(got.status().code(), Errc::not_supported);
}

using Members = std::map<std::string, std::string>;

std::string deepseek(const Members& changed = {}) {
  Members all = changed;
  all.insert({{"model_type", "\"deepseek_v3\""},
              {"hidden_size", "64"},
              {"intermediate_size", "96"},
              {"num_hidden_layers", "5"},
              {"num_attention_heads", "4"},
              {"kv_lora_rank", "16"},
              {"n_routed_experts", "12"},
              {"n_group", "4"},
              {"topk_group", "2"},
              {"num_experts_per_tok", "3"},
              {"moe_intermediate_size", "24"}});
  std::string out;
  for (const auto& [key, value] : all) out += base::format("{}\"{}\": {}", out.empty() ? "{" : ", ", key, value);
  return out + "}";
}

TEST(ConfigExperts, ReadsTheBlockOfDeepSeekV3) {
  const auto read_moe = [](const Members& changed) { return parse_config(deepseek(changed), "test.json", Part::moe); };
  const ModelConfig c = read_moe({}).value();
  EXPECT_FALSE(c.has_attention());
  EXPECT_EQ(c.layers, 2) << "of five the first three are dense";
  EXPECT_EQ(c.numbers, (std::vector<int64_t>{3, 4}));
  EXPECT_EQ(c.expert_layers(c.layers), 2);
  EXPECT_EQ(c.intermediate, 0);
  const Experts& e = c.experts;
  EXPECT_EQ(e.count, 12);
  EXPECT_EQ(e.per_token, 3);
  EXPECT_EQ(e.intermediate, 24);
  EXPECT_EQ(e.shared, 24);
  EXPECT_FALSE(e.is_shared_gated);
  EXPECT_EQ(e.scores, Scores::sigmoid);
  EXPECT_TRUE(e.has_bias && e.renormalize);
  EXPECT_EQ(e.groups, 4);
  EXPECT_EQ(e.kept_groups, 2);
  EXPECT_EQ(e.scale, 2.5);
  const ModelConfig other = read_moe({{"n_shared_experts", "2"},
                                      {"norm_topk_prob", "false"},
                                      {"routed_scaling_factor", "1.5"},
                                      {"first_k_dense_replace", "0"},
                                      {"scoring_func", "\"sigmoid\""},
                                      {"moe_layer_freq", "1"}})
                                .value();
  EXPECT_EQ(other.layers, 5);
  EXPECT_EQ(other.experts.shared, 48);
  EXPECT_FALSE(other.experts.renormalize);
  EXPECT_EQ(other.experts.scale, 1.5);
  EXPECT_FALSE(has_weight(read_moe({{"n_shared_experts", "0"}}).value(), Weight::shared_up));
}

TEST(ConfigExperts, DeepSeekV3IsRefusedWhereItCannotRun) {
  const auto whole = parse_config(deepseek(), "test.json");
  ASSERT_FALSE(whole.ok());
  EXPECT_EQ(whole.status().code(), Errc::not_supported);
  EXPECT_EQ(whole.status().message(),
            "test.json: key \"kv_lora_rank\" is 16; supported: model_type deepseek_v3 with `overlace run --part moe` "
            "alone, its router and experts");
  struct Bad {
    const char *key, *value, *message;
  };
  for (const Bad& bad :
       {Bad{"n_group", "5", "key \"n_group\" is 5, wanted a divisor of n_routed_experts 12"},
        Bad{"n_group", "null", "key \"n_group\" is null, wanted a value, or no such key"},
        Bad{"topk_group", "5", "key \"topk_group\" is 5, wanted at most n_group 4"},
        Bad{"num_experts_per_tok", "7",
            "key \"num_experts_per_tok\" is 7, wanted at most 6, the experts of topk_group 2 groups"},
        Bad{"n_shared_experts", "-1", "key \"n_shared_experts\" is -1, wanted an integer from 0 to 1024"},
        Bad{"scoring_func", "\"softmax\"", "key \"scoring_func\" is \"softmax\"; supported: sigmoid"},
        Bad{"topk_method", "\"greedy\"", "key \"topk_method\" is \"greedy\"; supported: noaux_tc"},
        Bad{"moe_layer_freq", "2", "key \"moe_layer_freq\" is 2; supported: 1"},
        Bad{"first_k_dense_replace", "5",
            "--part is moe, but no layer has experts, wanted all, or a model with experts"}}) {
    const auto got = parse_config(deepseek({{bad.key, bad.value}}), "test.json", Part::moe);
    ASSERT_FALSE(got.ok()) << bad.key;
    EXPECT_EQ(got.status().message(), base::format("test.json: {}", bad.message));
  }
}

TEST(ConfigExperts, PartMoeLeavesOutWhatIsNotOfExperts) {
  const std::string some = "\"num_experts\": 6, \"mlp_only_layers\": [0, 2]";
  const ModelConfig c = parse_config(qwen("qwen2_moe", some), "test.json", Part::moe).value();
  EXPECT_EQ(c.layers, 2);
  EXPECT_EQ(c.numbers, (std::vector<int64_t>{1, 3}));
  for (int w = 0; w <= static_cast<int>(Weight::router_bias); ++w) {
    const auto weight = static_cast<Weight>(w);
    const bool is_of_experts = weight >= Weight::router && weight != Weight::router_bias;
    EXPECT_EQ(has_weight(c, weight), is_of_experts) << w;
  }
  Problem problem;
  problem.tokens = problem.sequence_length = 8;
  problem.layers = 2;
  EXPECT_TRUE(sites(c, problem, 3).value().empty()) << "two KV heads would not do on three ranks";
  problem.layers = 3;
  EXPECT_EQ(sites(c, problem, 3).status().message(),
            "layers is 3, wanted 1 to 2, the layers with experts of test.json");
  for (const char* type : {"qwen3", "llama"}) {
    const auto got = parse_config(qwen(type, "\"x\": 1"), "test.json", Part::moe);
    ASSERT_FALSE(got.ok());
    EXPECT_EQ(got.status().code(), Errc::invalid_argument);
    EXPECT_EQ(got.status().message(),
              "test.json: --part is moe, but no layer has experts, wanted all, or a model with experts");
  }
}

TEST(ConfigExperts, ShippedOnesHaveTheirPublishedShapes) {
  struct Published {
    const char* name;
    int64_t layers, count, per_token, intermediate, shared;
    bool renormalize;
  };
  for (const Published& p : {Published{"Mixtral-8x7B", 32, 8, 2, 14336, 0, true},
                             Published{"Qwen1.5-MoE-A2.7B", 24, 60, 4, 1408, 5632, false},
                             Published{"Qwen3-30B-A3B", 48, 128, 8, 768, 0, true}}) {
    const ModelConfig c = load_config(p.name).value();
    EXPECT_EQ(c.layers, p.layers) << p.name;
    EXPECT_EQ(c.experts.count, p.count) << p.name;
    EXPECT_EQ(c.experts.per_token, p.per_token) << p.name;
    EXPECT_EQ(c.experts.intermediate, p.intermediate) << p.name;
    EXPECT_EQ(c.experts.shared, p.shared) << p.name;
    EXPECT_EQ(c.experts.renormalize, p.renormalize) << p.name;
    EXPECT_EQ(c.rope_theta, 1e6) << p.name;
    EXPECT_EQ(c.intermediate, 0) << p.name;
  }
  EXPECT_EQ(load_config("Qwen3-30B-A3B").value().head_dim, 128);
  const ModelConfig deep = load_config("DeepSeek-V3", Part::moe).value();
  EXPECT_EQ(deep.hidden, 7168);
  EXPECT_EQ(deep.layers, 58);
  EXPECT_EQ(deep.number_of(0), 3);
  EXPECT_EQ(deep.experts.count, 256);
  EXPECT_EQ(deep.experts.per_token, 8);
  EXPECT_EQ(deep.experts.intermediate, 2048);
  EXPECT_EQ(deep.experts.shared, 2048);
  EXPECT_EQ(deep.experts.groups, 8);
  EXPECT_EQ(deep.experts.kept_groups, 4);
}

}  // namespace
}  // namespace overlace::model
