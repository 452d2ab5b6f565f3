#include "src/model/shipped.h"

namespace overlace::model {
namespace {

// NOTE: two ranks on two cores run it within seconds, on the reference GEMM too; eight heads split over 1, 2, 4 or 8
// ranks, and at 8 the KV heads are replicated.
constexpr std::string_view kTiny = R"({
  "model_type": "llama", "hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 2,
  "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64, "hidden_act": "silu",
  "max_position_embeddings": 8192, "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "attention_bias": false,
  "mlp_bias": false
})";

// Ten experts split evenly over 1, 2 or 5 ranks, twelve heads over 1, 2, 3, 4, 6 or 12.
constexpr std::string_view kTinyMoe = R"({
  "model_type": "mixtral", "hidden_size": 384, "intermediate_size": 256, "num_hidden_layers": 2,
  "num_attention_heads": 12, "num_key_value_heads": 12, "head_dim": 32, "hidden_act": "silu",
  "max_position_embeddings": 8192, "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "sliding_window": null,
  "num_local_experts": 10, "num_experts_per_tok": 2
})";

constexpr std::string_view kLlama31_8B = R"({
  "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
  "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_act": "silu", "max_position_embeddings": 131072,
  "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "attention_bias": false, "mlp_bias": false,
  "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                   "original_max_position_embeddings": 8192}
})";

constexpr std::string_view kLlama31_70B = R"({
  "model_type": "llama", "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80,
  "num_attention_heads": 64, "num_key_value_heads": 8, "hidden_act": "silu", "max_position_embeddings": 131072,
  "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "attention_bias": false, "mlp_bias": false,
  "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                   "original_max_position_embeddings": 8192}
})";

constexpr std::string_view kQwen3_8B = R"({
  "model_type": "qwen3", "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36,
  "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "hidden_act": "silu",
  "max_position_embeddings": 40960, "rms_norm_eps": 1e-06, "rope_theta": 1000000, "rope_scaling": null,
  "attention_bias": false, "sliding_window": null, "use_sliding_window": false
})";

constexpr std::string_view kQwen3_32B = R"({
  "model_type": "qwen3", "hidden_size": 5120, "intermediate_size": 25600, "num_hidden_layers": 64,
  "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128, "hidden_act": "silu",
  "max_position_embeddings": 40960, "rms_norm_eps": 1e-06, "rope_theta": 1000000, "rope_scaling": null,
  "attention_bias": false, "sliding_window": null, "use_sliding_window": false
})";

constexpr std::string_view kMistral7B = R"({
  "model_type": "mistral", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
  "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_act": "silu", "max_position_embeddings": 32768,
  "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "sliding_window": 4096
})";

constexpr std::string_view kMixtral8x7B = R"({
  "model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
  "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_act": "silu", "max_position_embeddings": 32768,
  "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "sliding_window": null, "num_local_experts": 8,
  "num_experts_per_tok": 2
})";

constexpr std::string_view kQwen15MoeA27B = R"({
  "model_type": "qwen2_moe", "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 24,
  "num_attention_heads": 16, "num_key_value_heads": 16, "hidden_act": "silu", "max_position_embeddings": 8192,
  "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "use_sliding_window": false, "num_experts": 60,
  "num_experts_per_tok": 4, "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632,
  "norm_topk_prob": false, "decoder_sparse_step": 1
})";

constexpr std::string_view kQwen3_30B_A3B = R"({
  "model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 48,
  "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "hidden_act": "silu",
  "max_position_embeddings": 40960, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "rope_scaling": null,
  "attention_bias": false, "sliding_window": null, "use_sliding_window": false, "num_experts": 128,
  "num_experts_per_tok": 8, "moe_intermediate_size": 768, "norm_topk_prob": true, "decoder_sparse_step": 1,
  "mlp_only_layers": []
})";

// Its attention is latent: it runs with Part::moe alone.
constexpr std::string_view kDeepSeekV3 = R"({
  "model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432, "num_hidden_layers": 61,
  "num_attention_heads": 128, "num_key_value_heads": 128, "q_lora_rank": 1536, "kv_lora_rank": 512,
  "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "hidden_act": "silu",
  "max_position_embeddings": 163840, "rms_norm_eps": 1e-06, "n_routed_experts": 256, "num_experts_per_tok": 8,
  "n_shared_experts": 1, "moe_intermediate_size": 2048, "first_k_dense_replace": 3, "moe_layer_freq": 1, "n_group": 8,
  "topk_group": 4, "scoring_func": "sigmoid", "topk_method": "noaux_tc", "norm_topk_prob": true,
  "routed_scaling_factor": 2.5
})";

// GPT-3 175B (arXiv 2005.14165, table 2.1) with GPT-2's keys. Its locally banded layers run dense here.
constexpr std::string_view kGpt3_175B = R"({
  "model_type": "gpt3", "n_embd": 12288, "n_layer": 96, "n_head": 96, "n_inner": 49152, "n_positions": 2048,
  "activation_function": "gelu_new", "layer_norm_epsilon": 1e-05, "scale_attn_weights": true
})";

constexpr ShippedConfig kShipped[] = {
    {"tiny", kTiny},
    {"tiny-moe", kTinyMoe},
    {"Llama-3.1-8B", kLlama31_8B},
    {"Llama-3.1-70B", kLlama31_70B},
    {"Qwen3-8B", kQwen3_8B},
    {"Qwen3-32B", kQwen3_32B},
    {"Mistral-7B-v0.1", kMistral7B},
    {"Mixtral-8x7B", kMixtral8x7B},
    {"Qwen1.5-MoE-A2.7B", kQwen15MoeA27B},
    {"Qwen3-30B-A3B", kQwen3_30B_A3B},
    {"DeepSeek-V3", kDeepSeekV3},
    {"GPT-3-175B", kGpt3_175B},
};

}  // namespace

std::span<const ShippedConfig> shipped_config_data() { return kShipped; }

}  // namespace overlace::model
