#include "src/model/weight_names.h"

#include <algorithm>
#include <utility>

namespace overlace::model {
namespace {

struct WeightNames {
  Weight weight;
  const char* llama;  // and all that are not gpt2
  const char* gpt2;
};

constexpr WeightNames kWeightNames[] = {
    {Weight::norm1, "input_layernorm.weight", "ln_1.weight"},
    {Weight::norm1_bias, "", "ln_1.bias"},
    {Weight::q, "self_attn.q_proj.weight", "attn.c_attn.weight"},
    {Weight::q_bias, "self_attn.q_proj.bias", "attn.c_attn.bias"},
    {Weight::k, "self_attn.k_proj.weight", "attn.c_attn.weight"},
    {Weight::k_bias, "self_attn.k_proj.bias", "attn.c_attn.bias"},
    {Weight::v, "self_attn.v_proj.weight", "attn.c_attn.weight"},
    {Weight::v_bias, "self_attn.v_proj.bias", "attn.c_attn.bias"},
    {Weight::q_norm, "self_attn.q_norm.weight", ""},
    {Weight::k_norm, "self_attn.k_norm.weight", ""},
    {Weight::o, "self_attn.o_proj.weight", "attn.c_proj.weight"},
    {Weight::o_bias, "self_attn.o_proj.bias", "attn.c_proj.bias"},
    {Weight::norm2, "post_attention_layernorm.weight", "ln_2.weight"},
    {Weight::norm2_bias, "", "ln_2.bias"},
    {Weight::gate, "mlp.gate_proj.weight", ""},
    {Weight::gate_bias, "mlp.gate_proj.bias", ""},
    {Weight::up, "mlp.up_proj.weight", "mlp.c_fc.weight"},
    {Weight::up_bias, "mlp.up_proj.bias", "mlp.c_fc.bias"},
    {Weight::down, "mlp.down_proj.weight", "mlp.c_proj.weight"},
    {Weight::down_bias, "mlp.down_proj.bias", "mlp.c_proj.bias"},
    {Weight::router_bias, "mlp.gate.e_score_correction_bias", ""},
    {Weight::shared_gate, "gate_proj.weight", ""},  // of ExpertNames::shared
    {Weight::shared_up, "up_proj.weight", ""},
    {Weight::shared_down, "down_proj.weight", ""},
    {Weight::shared_router, "mlp.shared_expert_gate.weight", ""},
};

/// Names of a layer with experts: the block, what the matrices of one of its experts are called, and the shared expert.
struct ExpertNames {
  std::string_view model_type;
  const char *block, *gate, *up, *down;
  const char* shared = "";
};

constexpr ExpertNames kExpertNames[] = {
    {"mixtral", "block_sparse_moe", "w1", "w3", "w2"},
    {"qwen2_moe", "mlp", "gate_proj", "up_proj", "down_proj", "mlp.shared_expert"},
    {"qwen3_moe", "mlp", "gate_proj", "up_proj", "down_proj"},
    {"deepseek_v3", "mlp", "gate_proj", "up_proj", "down_proj", "mlp.shared_experts"},
};

const ExpertNames& expert_names(const ModelConfig& config) {
  const auto* const found = std::find_if(std::begin(kExpertNames), std::end(kExpertNames),
                                         [&](const ExpertNames& n) { return n.model_type == config.model_type; });
  OVERLACE_ASSERT(found != std::end(kExpertNames));
  return *found;
}

std::string stored_name(const ModelConfig& config, Weight weight, bool are_fused) {
  if (weight == Weight::router) return base::format("{}.gate.weight", are_fused ? "mlp" : expert_names(config).block);
  const auto* const found = std::find_if(std::begin(kWeightNames), std::end(kWeightNames),
                                         [&](const WeightNames& n) { return n.weight == weight; });
  OVERLACE_ASSERT(found != std::end(kWeightNames));
  if (weight == Weight::shared_gate || weight == Weight::shared_up || weight == Weight::shared_down)
    return base::format("{}.{}", expert_names(config).shared, found->llama);
  return config.conv1d_weights ? found->gpt2 : found->llama;
}

/// Where q, k and v start among the columns of GPT-2's fused c_attn.
int64_t fused_offset(const ModelConfig& config, Weight w) {
  if (w == Weight::k || w == Weight::k_bias) return config.hidden;
  if (w == Weight::v || w == Weight::v_bias) return 2 * config.hidden;
  return 0;
}

bool is_fused(Weight w) { return w >= Weight::q && w <= Weight::v_bias; }

/// Each expert has matrices of its own, of `rows` rows: gate and up in turn, or down.
std::vector<StoredPart> parts_of_experts(const ModelConfig& config, Weight weight, const WeightBox& box) {
  const ExpertNames& names = expert_names(config);
  const bool is_up = weight == Weight::expert_up;
  const int64_t rows = is_up ? config.experts.intermediate : config.hidden;
  const int64_t cols = weight_shape(config, weight).cols, end = box.row + box.rows;
  std::vector<StoredPart> out;
  for (int64_t row = box.row, next = 0; row < end; row = next) {
    const int64_t matrix = row / rows, expert = is_up ? matrix / 2 : matrix;
    next = std::min((matrix + 1) * rows, end);
    const char* name = !is_up ? names.down : matrix % 2 == 0 ? names.gate : names.up;
    out.push_back({base::format("{}.experts.{}.{}.weight", names.block, expert, name),
                   {rows, cols},
                   {row - matrix * rows, next - row, box.col, box.cols},
                   (row - box.row) * box.cols});
  }
  return out;
}

/// All experts one below the other.
std::vector<StoredPart> part_of_fused(const ModelConfig& config, Weight weight, const WeightBox& box) {
  const WeightBox whole = weight_shape(config, weight);
  const int64_t count = config.experts.count;
  const char* name = weight == Weight::expert_up ? kFusedExperts : "mlp.experts.down_proj";
  return {{name, {count, whole.rows / count, whole.cols}, {box.row, box.rows, box.col, box.cols}}};
}

}  // namespace

std::vector<StoredPart> stored_parts(const ModelConfig& config, Weight weight, const WeightBox& box, bool are_fused) {
  const bool of_experts = weight == Weight::expert_up || weight == Weight::expert_down;
  if (of_experts) return are_fused ? part_of_fused(config, weight, box) : parts_of_experts(config, weight, box);
  const bool gpt2 = config.conv1d_weights, is_vector = !is_matrix(weight);
  const WeightBox whole = weight_shape(config, weight);
  int64_t rows = whole.rows, cols = whole.cols;  // as stored
  StoredBox stored{box.row, box.rows, box.col, box.cols, false};
  if (gpt2 && !is_vector) {
    std::swap(rows, cols);
    stored = {box.col, box.cols, box.row, box.rows, true};
  }
  if (gpt2 && is_fused(weight)) {
    cols = 3 * config.hidden;
    stored.col += fused_offset(config, weight);
  }
  std::vector<int64_t> shape = is_vector ? std::vector<int64_t>{cols} : std::vector<int64_t>{rows, cols};
  return {{stored_name(config, weight, are_fused), std::move(shape), stored}};
}

}  // namespace overlace::model
