// Every weight of a layer is read from the tensor that Hugging Face's models keep it in.
#include <gtest/gtest.h>

#include <map>

#include "src/model/weights.h"
#include "tests/unit/model/safetensors_writer.h"
#include "tests/unit/model/scratch_dir.h"

namespace overlace::model {
namespace {

struct Named {
  Weight weight;
  const char* name;
};

const char kLlamaConfig[] = R"({"model_type": "llama", "hidden_size": 8, "intermediate_size": 6, "num_hidden_layers": 1,
  "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 2, "attention_bias": true, "mlp_bias": true})";
const Named kLlamaNames[] = {
    {Weight::norm1, "input_layernorm.weight"}, {Weight::q, "self_attn.q_proj.weight"},
    {Weight::q_bias, "self_attn.q_proj.bias"}, {Weight::k, "self_attn.k_proj.weight"},
    {Weight::k_bias, "self_attn.k_proj.bias"}, {Weight::v, "self_attn.v_proj.weight"},
    {Weight::v_bias, "self_attn.v_proj.bias"}, {Weight::o, "self_attn.o_proj.weight"},
    {Weight::o_bias, "self_attn.o_proj.bias"}, {Weight::norm2, "post_attention_layernorm.weight"},
    {Weight::gate, "mlp.gate_proj.weight"},    {Weight::gate_bias, "mlp.gate_proj.bias"},
    {Weight::up, "mlp.up_proj.weight"},        {Weight::up_bias, "mlp.up_proj.bias"},
    {Weight::down, "mlp.down_proj.weight"},    {Weight::down_bias, "mlp.down_proj.bias"}};

const char kQwen3[] = R"({"model_type": "qwen3", "hidden_size": 8, "intermediate_size": 6, "num_hidden_layers": 1,
  "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 2})";
const Named kQwen3Norms[] = {{Weight::norm1, "input_layernorm.weight"},
                             {Weight::q_norm, "self_attn.q_norm.weight"},
                             {Weight::k_norm, "self_attn.k_norm.weight"}};

const char kQwen2Moe[] = R"({"model_type": "qwen2_moe", "hidden_size": 8, "intermediate_size": 6,
  "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 4,
  "num_experts": 3, "num_experts_per_tok": 2,
  "moe_intermediate_size": 4, "shared_expert_intermediate_size": 5})";
const Named kQwen2Shared[] = {{Weight::norm1, "input_layernorm.weight"},
                              {Weight::q_bias, "self_attn.q_proj.bias"},
                              {Weight::router, "mlp.gate.weight"},
                              {Weight::shared_gate, "mlp.shared_expert.gate_proj.weight"},
                              {Weight::shared_up, "mlp.shared_expert.up_proj.weight"},
                              {Weight::shared_down, "mlp.shared_expert.down_proj.weight"},
                              {Weight::shared_router, "mlp.shared_expert_gate.weight"}};

const char kDeepSeek[] = R"({"model_type": "deepseek_v3", "hidden_size": 8, "intermediate_size": 6,
  "num_hidden_layers": 2, "n_routed_experts": 6, "num_experts_per_tok": 2, "n_group": 3, "topk_group": 2,
  "moe_intermediate_size": 4, "first_k_dense_replace": 1})";
const Named kDeepSeekNames[] = {{Weight::router, "mlp.gate.weight"},
                                {Weight::router_bias, "mlp.gate.e_score_correction_bias"},
                                {Weight::shared_gate, "mlp.shared_experts.gate_proj.weight"},
                                {Weight::shared_up, "mlp.shared_experts.up_proj.weight"},
                                {Weight::shared_down, "mlp.shared_experts.down_proj.weight"}};

/// Apart from q, k and v, which share a tensor.
const char kGpt2Config[] = R"({"model_type": "gpt2", "n_embd": 4, "n_layer": 1, "n_head": 2, "n_inner": 6})";
const Named kGpt2Names[] = {{Weight::norm1, "ln_1.weight"},      {Weight::norm1_bias, "ln_1.bias"},
                            {Weight::o, "attn.c_proj.weight"},   {Weight::o_bias, "attn.c_proj.bias"},
                            {Weight::norm2, "ln_2.weight"},      {Weight::norm2_bias, "ln_2.bias"},
                            {Weight::up, "mlp.c_fc.weight"},     {Weight::up_bias, "mlp.c_fc.bias"},
                            {Weight::down, "mlp.c_proj.weight"}, {Weight::down_bias, "mlp.c_proj.bias"}};

/// Tensor t holds 1000 t, 1000 t + 1, ...; matrices of GPT-2 lie transposed.
template <size_t N>
void expect_read_by_name(const char* json, const Named (&names)[N], const std::string& prefix, bool is_transposed,
                         Part part = Part::all) {
  const ModelConfig config = parse_config(json, "test.json", part).value();
  std::vector<TestTensor> tensors;
  for (size_t t = 0; t < N; ++t) {
    const WeightBox shape = weight_shape(config, names[t].weight);
    std::vector<float> values;
    for (int64_t i = 0; i < shape.rows * shape.cols; ++i)
      values.push_back(static_cast<float>(1000 * static_cast<int64_t>(t) + i));
    std::vector<int64_t> stored = {shape.rows, shape.cols};
    if (is_transposed) std::swap(stored[0], stored[1]);
    if (!is_matrix(names[t].weight)) stored = {shape.cols};
    tensors.push_back({prefix + names[t].name, "F32", stored, fp32_bytes(values)});
  }
  const ScratchDir dir;
  dir.write("model.safetensors", safetensors(tensors));
  Problem problem;
  problem.checkpoint = dir.path();
  auto weights = Weights::open(config, problem);
  ASSERT_TRUE(weights.ok()) << weights.status().message();
  for (size_t t = 0; t < N; ++t) {
    const Weight weight = names[t].weight;
    EXPECT_TRUE(has_weight(config, weight)) << names[t].name;
    const WeightBox shape = weight_shape(config, weight);
    std::vector<float> out(static_cast<size_t>(shape.rows * shape.cols), -1);
    const base::Status status = weights->read(0, weight, shape, out.data());
    ASSERT_TRUE(status.ok()) << status.message();
    for (int64_t i = 0; i < shape.rows; ++i) {
      for (int64_t j = 0; j < shape.cols; ++j) {
        const int64_t at = is_transposed && is_matrix(weight) ? j * shape.rows + i : i * shape.cols + j;
        ASSERT_EQ(out[static_cast<size_t>(i * shape.cols + j)], static_cast<float>(1000 * static_cast<int64_t>(t) + at))
            << names[t].name << " at " << i << ", " << j;
      }
    }
  }
}

TEST(WeightNames, OfLlamaWithBiases) { expect_read_by_name(kLlamaConfig, kLlamaNames, "model.layers.0.", false); }

TEST(WeightNames, OfQwensNormsOfHeads) { expect_read_by_name(kQwen3, kQwen3Norms, "layers.0.", false); }

TEST(WeightNames, OfQwensSharedExpert) { expect_read_by_name(kQwen2Moe, kQwen2Shared, "model.layers.0.", false); }

TEST(WeightNames, OfDeepSeeksBlockOfExperts) {
  expect_read_by_name(kDeepSeek, kDeepSeekNames, "model.layers.1.", false, Part::moe);
}

TEST(WeightNames, TheBiasOfARouterStaysFp32) {
  const ModelConfig config = parse_config(kDeepSeek, "test.json", Part::moe).value();
  std::vector<TestTensor> tensors = {
      {"model.layers.1.mlp.gate.weight", "F32", {6, 8}, fp32_bytes(std::vector<float>(48, 1))},
      {"model.layers.1.mlp.gate.e_score_correction_bias",
       "F32",
       {6},
       fp32_bytes({4001, 1, 2, 3, 4, 5})}};  // 4001 is no bf16 number
  const ScratchDir dir;
  dir.write("model.safetensors", safetensors(tensors));
  Problem problem;
  problem.checkpoint = dir.path();
  problem.dtype = DType::bf16;
  std::vector<float> bias(6);
  auto weights = Weights::open(config, problem);
  ASSERT_TRUE(weights.ok()) << weights.status().message();
  ASSERT_TRUE(weights->read(0, Weight::router_bias, weight_shape(config, Weight::router_bias), bias.data()).ok());
  EXPECT_EQ(bias, (std::vector<float>{4001, 1, 2, 3, 4, 5}));
}

TEST(WeightNames, OfGpt2) { expect_read_by_name(kGpt2Config, kGpt2Names, "transformer.h.0.", true); }

TEST(WeightNames, AModelHasOnlyItsOwn) {
  const ModelConfig llama = parse_config(kLlamaConfig, "test.json").value(),
                    gpt2 = parse_config(kGpt2Config, "test.json").value();
  for (const Weight weight : {Weight::norm1_bias, Weight::norm2_bias, Weight::q_norm, Weight::k_norm})
    EXPECT_FALSE(has_weight(llama, weight));
  for (const Weight weight : {Weight::gate, Weight::gate_bias, Weight::q_norm, Weight::k_norm})
    EXPECT_FALSE(has_weight(gpt2, weight));
}

}  // namespace
}  // namespace overlace::model
