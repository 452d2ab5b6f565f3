// Experts of a checkpoint: each expert's tensors by name, and only those of the part that is read.
#include <gtest/gtest.h>

#include <algorithm>

#include "src/model/sharding.h"
#include "src/model/weight_names.h"
#include "src/model/weights.h"
#include "tests/unit/model/safetensors_writer.h"
#include "tests/unit/model/scratch_dir.h"

namespace overlace::model {
namespace {

constexpr int64_t kHidden = 4, kInner = 3, kStoredExperts = 3;

struct Family {
  const char *config, *block, *gate, *up, *down;
};

const Family kMixtral{R"({"model_type": "mixtral", "hidden_size": 4, "intermediate_size": 3, "num_hidden_layers": 1,
  "num_attention_heads": 2, "num_key_value_heads": 2, "num_local_experts": 3, "num_experts_per_tok": 2})",
                      "block_sparse_moe", "w1", "w3", "w2"};

const Family kQwen3Moe{R"({"model_type": "qwen3_moe", "hidden_size": 4, "intermediate_size": 8, "num_hidden_layers": 1,
  "num_attention_heads": 2, "num_key_value_heads": 2, "num_experts": 3, "num_experts_per_tok": 2,
  "moe_intermediate_size": 3})",
                       "mlp", "gate_proj", "up_proj", "down_proj"};

std::vector<float> counted(float first, int64_t n) {
  std::vector<float> out;
  for (int64_t i = 0; i < n; ++i) out.push_back(first + static_cast<float>(i));
  return out;
}

std::string expert_name(const Family& f, int64_t expert, const char* matrix) {
  return std::string("model.layers.0.") + f.block + ".experts." + std::to_string(expert) + "." + matrix + ".weight";
}

/// Expert e's gate counts from 100 e, its up from 100 e + 20, its down from 100 e + 40, the router from 1000.
std::vector<TestTensor> tensors_of(const Family& f) {
  std::vector<TestTensor> out = {
      {"model.layers.0.input_layernorm.weight", "F32", {kHidden}, fp32_bytes(counted(1, kHidden))},
      {std::string("model.layers.0.") + f.block + ".gate.weight",
       "F32",
       {kStoredExperts, kHidden},
       fp32_bytes(counted(1000, kStoredExperts * kHidden))}};
  for (int64_t e = 0; e < kStoredExperts; ++e) {
    const auto first = static_cast<float>(100 * e);
    const auto add = [&](const char* matrix, int64_t rows, int64_t cols, float from) {
      out.push_back({expert_name(f, e, matrix), "F32", {rows, cols}, fp32_bytes(counted(from, rows * cols))});
    };
    add(f.gate, kInner, kHidden, first);
    add(f.up, kInner, kHidden, first + 20);
    add(f.down, kHidden, kInner, first + 40);
  }
  return out;
}

Problem stored_problem(const ScratchDir& dir) {
  Problem problem;
  problem.checkpoint = dir.path();
  problem.tokens = problem.sequence_length = 4;
  return problem;
}

/// A checkpoint of the family with these tensors, opened.
struct Opened {
  Opened(const Family& f, const std::vector<TestTensor>& tensors)
      : config(parse_config(f.config, "test.json").value()), weights(stored(tensors)) {}

  Weights stored(const std::vector<TestTensor>& tensors) const {
    dir.write("model.safetensors", safetensors(tensors));
    return Weights::open(config, stored_problem(dir)).value();
  }

  ScratchDir dir;
  ModelConfig config;
  Weights weights;
};

std::vector<float> read_box(Weights& weights, Weight weight, const WeightBox& box) {
  std::vector<float> out(static_cast<size_t>(box.rows * box.cols), -1);
  const base::Status status = weights.read(0, weight, box, out.data());
  EXPECT_TRUE(status.ok()) << status.message();
  return out;
}

void append(std::vector<float>* to, const std::vector<float>& more) { to->insert(to->end(), more.begin(), more.end()); }

class ExpertWeights : public testing::TestWithParam<Family> {};

TEST_P(ExpertWeights, AreReadByName) {
  const Family& f = GetParam();
  Opened opened(f, tensors_of(f));
  auto& [dir, config, weights] = opened;
  EXPECT_EQ(read_box(weights, Weight::router, weight_shape(config, Weight::router)),
            counted(1000, kStoredExperts * kHidden));
  for (int rank = 0; rank < 2; ++rank) {
    const Shard shard = make_shard(config, stored_problem(dir), rank, 2).value();
    ASSERT_EQ(shard.experts, 1 + rank);
    std::vector<float> up, down;
    for (int64_t e = shard.first_expert; e < shard.first_expert + shard.experts; ++e) {
      const auto first = static_cast<float>(100 * e);
      append(&up, counted(first, kInner * kHidden));
      append(&up, counted(first + 20, kInner * kHidden));
      append(&down, counted(first + 40, kInner * kHidden));
    }
    EXPECT_EQ(read_box(weights, Weight::expert_up, shard_box(config, shard, Weight::expert_up)), up);
    EXPECT_EQ(read_box(weights, Weight::expert_down, shard_box(config, shard, Weight::expert_down)), down);
  }
}

TEST_P(ExpertWeights, PartsBeginAndEndInsideAnExpert) {
  const Family& f = GetParam();
  Opened opened(f, tensors_of(f));
  auto& [dir, config, weights] = opened;
  // The last row of expert 0's up and the first of expert 1's gate, without their first column.
  EXPECT_EQ(read_box(weights, Weight::expert_up, {2 * kInner - 1, 2, 1, kHidden - 1}),
            (std::vector<float>{29, 30, 31, 101, 102, 103}));
  EXPECT_EQ(read_box(weights, Weight::expert_down, {kHidden - 1, 2, 1, 1}), (std::vector<float>{50, 141}));
  EXPECT_TRUE(stored_parts(config, Weight::expert_up, {0, 0, 0, kHidden}).empty()) << "a rank without experts";
}

/// Reads all experts of rank 0 of 3, which has the first, and of rank 2, which has the last.
void expect_refused_by_owner(const Family& f, std::vector<TestTensor> tensors, const std::string& message) {
  Opened opened(f, tensors);
  auto& [dir, config, weights] = opened;
  std::vector<float> out(2 * kInner * kHidden);
  EXPECT_TRUE(weights.read(0, Weight::expert_up, {0, 2 * kInner, 0, kHidden}, out.data()).ok());
  const base::Status status =
      weights.read(0, Weight::expert_up, {(kStoredExperts - 1) * 2 * kInner, 2 * kInner, 0, kHidden}, out.data());
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.code(), Errc::corrupt);
  EXPECT_EQ(status.message(), dir / "model.safetensors" + ": tensor \"" + message);
}

TEST_P(ExpertWeights, OneThatIsMissingOrOfAnotherShapeIsNamed) {
  const Family& f = GetParam();
  const std::string name = expert_name(f, kStoredExperts - 1, f.up);
  std::vector<TestTensor> tensors = tensors_of(f);
  const auto at = std::find_if(tensors.begin(), tensors.end(), [&](const TestTensor& t) { return t.name == name; });
  ASSERT_NE(at, tensors.end());
  at->shape = {kHidden, kInner};
  expect_refused_by_owner(f, tensors, name + "\" has shape (4, 3), wanted (3, 4)");
  tensors.erase(at);
  expect_refused_by_owner(f, tensors, name + "\" is missing");
}

/// Tensors as newer versions of transformers hold them: of each expert its gate rows, then its up rows.
TEST_P(ExpertWeights, AreReadFromFusedTensors) {
  const Family& f = GetParam();
  const auto fused = [&](int64_t rows) {
    const std::string layer = "model.layers.0.";
    return std::vector<TestTensor>{
        {layer + "input_layernorm.weight", "F32", {kHidden}, fp32_bytes(counted(1, kHidden))},
        {layer + "mlp.gate.weight",
         "F32",
         {kStoredExperts, kHidden},
         fp32_bytes(counted(1000, kStoredExperts * kHidden))},
        {layer + "mlp.experts.gate_up_proj",
         "F32",
         {kStoredExperts, rows, kHidden},
         fp32_bytes(counted(0, kStoredExperts * rows * kHidden))},
        {layer + "mlp.experts.down_proj",
         "F32",
         {kStoredExperts, kHidden, kInner},
         fp32_bytes(counted(500, kStoredExperts * kHidden * kInner))}};
  };
  Opened opened(f, fused(2 * kInner));
  auto& [dir, config, weights] = opened;
  const WeightBox router = weight_shape(config, Weight::router);
  EXPECT_EQ(read_box(weights, Weight::router, router), counted(1000, kStoredExperts * kHidden));
  const Shard shard = make_shard(config, stored_problem(dir), 1, 2).value();  // experts 1 and 2
  EXPECT_EQ(read_box(weights, Weight::expert_up, shard_box(config, shard, Weight::expert_up)),
            counted(2 * kInner * kHidden, 4 * kInner * kHidden));
  EXPECT_EQ(read_box(weights, Weight::expert_down, shard_box(config, shard, Weight::expert_down)),
            counted(500 + kInner * kHidden, 2 * kInner * kHidden));
  Weights bad = opened.stored(fused(kInner));
  std::vector<float> out(2 * kInner * kHidden);
  const base::Status status = bad.read(0, Weight::expert_up, {0, 2 * kInner, 0, kHidden}, out.data());
  EXPECT_EQ(status.code(), Errc::corrupt);
  EXPECT_EQ(status.message(), dir / "model.safetensors" +
                                  ": tensor \"model.layers.0.mlp.experts.gate_up_proj\" has shape (3, 3, 4), wanted "
                                  "(3, 6, 4)");
}

TEST_P(ExpertWeights, HaveNoRangeInAFile) {
  const Family& f = GetParam();
  Opened opened(f, tensors_of(f));
  auto& [dir, config, weights] = opened;
  const WeightBox all = weight_shape(config, Weight::expert_up);
  for (const auto& [box, count] : {std::pair(all, 6), std::pair(WeightBox{0, kInner, 0, kHidden}, 1)}) {
    const auto range = weights.range(0, Weight::expert_up, box);
    ASSERT_FALSE(range.ok()) << count;
    EXPECT_EQ(range.status().code(), Errc::not_supported);
    EXPECT_EQ(range.status().message(),
              base::format("a weight of layer 0 lies in {} tensors, one for each matrix of an expert, wanted one for "
                           "the layer",
                           count));
  }
}

INSTANTIATE_TEST_SUITE_P(Families, ExpertWeights, testing::Values(kMixtral, kQwen3Moe));

}  // namespace
}  // namespace overlace::model
