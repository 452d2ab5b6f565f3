// Decoder stacks of all families over ranks, every schedule, against the fp64 oracle.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <span>

#include "overlace/runtime.h"
#include "src/base/half.h"
#include "src/base/trace.h"
#include "src/exec/run.h"
#include "src/model/layer_stream.h"
#include "src/model/sharding.h"
#include "src/model/stack.h"
#include "tests/ranks/support/run_ranks.h"
#include "tests/unit/model/safetensors_writer.h"
#include "tests/unit/model/scratch_dir.h"

namespace overlace::model {
namespace {

constexpr int64_t kHeadDim = 6;

const char kTheta[] = R"("rope_theta": 100.0)";
/// Experts of the second layer; the first is dense.
const char kExperts[] = R"("num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 9,
                           "shared_expert_intermediate_size": 11, "mlp_only_layers": [0])";

/// Two layers of experts behind a dense one.
const char kDeepSeek[] = R"({"model_type": "deepseek_v3", "hidden_size": 40, "intermediate_size": 14,
    "num_hidden_layers": 3, "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 9, "n_group": 4,
    "topk_group": 2, "n_shared_experts": 2, "first_k_dense_replace": 1, "routed_scaling_factor": 1.5})";

/// Heads to share equally; `mistral` replicates its one KV head, `qwen3` does on four ranks.
ModelConfig config_of(const std::string& family, int ranks) {
  const int64_t heads = 2 * ranks;
  const int64_t kv = family == "mistral" ? 1 : family == "qwen3" && ranks == 4 ? 2 : family == "llama" ? ranks : heads;
  const int64_t intermediate = 14 * ranks;
  if (family == "gpt2")
    return parse_config(base::format(R"({{"model_type": "gpt2", "n_embd": {}, "n_layer": 2, "n_head": {},
                                          "n_inner": {}}})",
                                     heads * kHeadDim, heads, intermediate),
                        "test")
        .value();
  if (family == "deepseek_v3") return parse_config(kDeepSeek, "test", Part::moe).value();
  return parse_config(
             base::format(R"({{"model_type": "{}", "hidden_size": 40, "intermediate_size": {}, "num_hidden_layers": 2,
                              "num_attention_heads": {}, "num_key_value_heads": {}, "head_dim": {}, {}}})",
                          family, intermediate, heads, kv, kHeadDim,
                          family == "mistral"     ? "\"sliding_window\": 5"
                          : family == "qwen2_moe" ? kExperts
                                                  : kTheta),
             "test")
      .value();
}

void expect_ok(const base::Status& status) { EXPECT_TRUE(status.ok()) << status.message(); }

struct NamedSchedules {
  std::string name;
  SiteSchedules sites;
};

/// Families that give a valid result, `library` first; q where the family has chunks.
std::vector<NamedSchedules> all_schedules(const std::vector<Site>& sites) {
  std::vector<NamedSchedules> all;
  const std::vector<std::string> gather = spec::families("ag_gemm"), scatter = spec::families("gemm_rs");
  for (const std::string& family : gather) {
    if (family == "compute" || family == "comm" || family == "limit") continue;
    if (std::find(scatter.begin(), scatter.end(), family) == scatter.end()) continue;
    for (int degree : {1, 2}) {
      NamedSchedules named{base::format("{} q {}", family, degree), {}};
      for (const Site& site : sites) named.sites.emplace(site.name, spec::make_schedule(site.op, family, degree));
      all.push_back(std::move(named));
    }
  }
  return all;
}

double largest_error(const std::vector<float>& got, const std::vector<double>& want, int64_t first) {
  double error = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double difference = std::abs(static_cast<double>(got[i]) - want[static_cast<size_t>(first) + i]);
    if (!(difference <= error)) error = difference;  // keeps a NaN: max() would lose it
    if (std::isnan(error)) break;
  }
  return error;
}

double largest_of_all(Team& team, double mine) {
  double largest = 0;
  for (const Bytes& bytes : team.exchange(std::as_bytes(std::span<const double>(&mine, 1)))) {
    double theirs = NAN;
    std::memcpy(&theirs, bytes.data(), sizeof theirs);
    largest = std::max(largest, theirs);
  }
  return largest;
}

/// (layers, tokens, experts of a token) of all ranks, whose rows follow each other.
std::vector<int32_t> whole_choices(Team& team, const std::vector<int32_t>& mine, int64_t layers) {
  std::vector<int32_t> whole;
  const std::vector<Bytes> parts = team.exchange(std::as_bytes(std::span<const int32_t>(mine)));
  for (int64_t layer = 0; layer < layers; ++layer)
    for (const Bytes& part : parts) {
      std::vector<int32_t> of_layer(part.size() / sizeof(int32_t) / static_cast<size_t>(layers));
      const size_t bytes = of_layer.size() * sizeof(int32_t);
      if (bytes > 0) std::memcpy(of_layer.data(), part.data() + static_cast<size_t>(layer) * bytes, bytes);
      whole.insert(whole.end(), of_layer.begin(), of_layer.end());
    }
  return whole;
}

struct StackCase {
  std::string family;
  int ranks;
  DType dtype;
  int64_t tokens, length;
  test::Mode mode;
};

void PrintTo(const StackCase& c, std::ostream* out) {
  *out << c.family << " ranks " << c.ranks << " " << dtype_name(c.dtype) << " tokens " << c.tokens;
}

class StackTest : public ::testing::TestWithParam<StackCase> {};

TEST_P(StackTest, EveryScheduleAgreesWithTheOracle) {
  const StackCase& c = GetParam();
  const ModelConfig config = config_of(c.family, c.ranks);
  Problem problem;
  problem.layers = 2;
  problem.tokens = c.tokens;
  problem.sequence_length = c.length;
  problem.dtype = c.dtype;
  problem.seed = 5;
  std::vector<float> input(static_cast<size_t>(c.tokens * config.hidden));
  seeded_input(11, 0, c.tokens, config.hidden, input.data());
  const std::vector<double> of_oracle = oracle(config, problem, input, -1, 2).value();
  double largest = 0;
  for (double value : of_oracle) largest = std::max(largest, std::abs(value));
  const double ulp = c.dtype == DType::fp32 ? 0x1p-23 : c.dtype == DType::bf16 ? 0x1p-7 : 0x1p-10;
  const double step = largest * ulp;
  const std::vector<Site> all_sites = sites(config, problem, c.ranks).value();
  const std::vector<NamedSchedules> schedules = all_schedules(all_sites);
  ASSERT_GE(schedules.size(), 4u);
  ASSERT_EQ(schedules[0].name, "library q 1");
  test::run_ranks(c.ranks, c.mode, [&](Runtime& runtime) {
    Team& team = runtime.world();
    const auto [first, rows] = token_rows(c.tokens, team.rank(), c.ranks);
    auto stack = Stack::create(config, problem, team.channel(StreamRef::cpu()));
    ASSERT_TRUE(stack.ok()) << stack.status().message();
    std::vector<float> out(static_cast<size_t>(rows * config.hidden));
    double unfused = 0;
    std::vector<double> want = of_oracle;
    std::vector<int32_t> chosen;
    for (const NamedSchedules& named : schedules) {
      std::fill(out.begin(), out.end(), NAN);
      const base::Status status = (*stack)->forward(input.data() + first * config.hidden, named.sites, out.data());
      ASSERT_TRUE(status.ok()) << named.name << ": " << status.message();
      // Along the run's own choice of experts, which is a choice of nearly the largest logits.
      ExpertChoices choices{whole_choices(team, (*stack)->expert_choices(), problem.layers)};
      if (choices.experts != chosen) {
        chosen = choices.experts;
        want = oracle(config, problem, input, -1, 1, {}, &choices).value();
        EXPECT_LT(choices.gap, 32 * ulp) << named.name;
      }
      const double error = largest_error(out, want, first * config.hidden);
      if (&named == &schedules.front()) {
        unfused = largest_of_all(team, error);
        ASSERT_LT(unfused, 32 * step);
      }
      EXPECT_LE(error, 2 * unfused + step) << named.name;
    }
  });
}

std::vector<StackCase> stack_cases() {
  std::vector<StackCase> cases;
  for (const char* family : {"llama", "qwen2", "qwen3", "mistral", "gpt2", "qwen2_moe", "deepseek_v3"}) {
    for (int ranks : {1, 2, 3, 4, 5})
      for (test::Mode mode : test::all_modes()) cases.push_back({family, ranks, DType::fp32, 26, 13, mode});
    cases.push_back({family, 2, DType::bf16, 26, 13, test::Mode::threads});
    cases.push_back({family, 3, DType::fp16, 26, 26, test::Mode::threads_adversary});
  }
  cases.push_back({"llama", 5, DType::fp32, 3, 3, test::Mode::threads});                // two ranks have no token
  cases.push_back({"qwen2_moe", 5, DType::fp32, 3, 3, test::Mode::threads_adversary});  // two have no expert, too
  cases.push_back({"deepseek_v3", 5, DType::bf16, 3, 3, test::Mode::threads_adversary});
  cases.push_back({"gpt2", 4, DType::bf16, 1, 1, test::Mode::threads_adversary});
  return cases;
}

INSTANTIATE_TEST_SUITE_P(All, StackTest, ::testing::ValuesIn(stack_cases()), [](const auto& test) {
  const StackCase& c = test.param;
  return base::format("{}_{}_ranks_{}_{}_tokens_{}", c.family, c.ranks, dtype_name(c.dtype), c.tokens,
                      test::mode_name(c.mode));
});

TEST(StackCallsTest, TimingCallsLeaveForwardAsItWas) {
  const ModelConfig config = config_of("llama", 2);
  Problem problem;
  problem.layers = 2;
  problem.tokens = problem.sequence_length = 9;
  const std::vector<Site> all_sites = sites(config, problem, 2).value();
  const SiteSchedules schedules = all_schedules(all_sites)[0].sites;
  test::run_ranks(2, test::Mode::threads, [&](Runtime& runtime) {
    const int rank = runtime.world().rank();
    Channel& channel = runtime.world().channel(StreamRef::cpu());
    auto stack = Stack::create(config, problem, channel).value();
    const auto [first, rows] = token_rows(9, rank, 2);
    std::vector<float> input(static_cast<size_t>(rows * config.hidden)), before(input.size()), after(input.size());
    seeded_input(1, first, rows, config.hidden, input.data());
    for (const Site& site : all_sites) expect_ok(stack->run_site(site.name, schedules.at(site.name), 2));
    expect_ok(stack->forward(input.data(), schedules, before.data()));
    expect_ok(stack->run_layers(schedules, 2));
    for (const Site& site : all_sites) expect_ok(stack->run_site(site.name, schedules.at(site.name), 1));
    expect_ok(stack->forward(input.data(), schedules, after.data()));
    EXPECT_EQ(before, after);
    expect_ok(stack->synchronize());
    const base::Status unknown = stack->run_site("attention", schedules.at("qkv"), 1);
    EXPECT_EQ(unknown.code(), Errc::invalid_argument);
    EXPECT_NE(unknown.message().find("wanted one of qkv, o_proj, gate_up, down"), std::string::npos)
        << unknown.message();
    SiteSchedules fewer = schedules;
    fewer.erase("down");
    const base::Status missing = stack->run_layers(fewer, 1);
    EXPECT_EQ(missing.code(), Errc::invalid_argument);
    EXPECT_NE(missing.message().find("none for site \"down\""), std::string::npos) << missing.message();
  });
}

TEST(StackCallsTest, EachLayerThatIsLoadedIsToldOnce) {
  const ModelConfig config = parse_config(R"({"model_type": "llama", "hidden_size": 24, "intermediate_size": 16,
      "num_hidden_layers": 5, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6})",
                                          "test")
                                 .value();
  Problem problem;
  problem.layers = 5;
  problem.tokens = problem.sequence_length = 8;
  const Shard shard = make_shard(config, problem, 0, 2).value();
  const int64_t layer = LayerLayout(config, shard, problem.dtype).bytes();
  const int64_t three_slots = activation_bytes(config, problem, shard) + 3 * layer;
  for (const int64_t device_bytes : {int64_t{0}, three_slots}) {
    problem.device_bytes = device_bytes;
    test::run_ranks(2, test::Mode::threads, [&](Runtime& runtime) {
      int told = 0;
      const auto stack =
          Stack::create(config, problem, runtime.world().channel(StreamRef::cpu()), [&] { ++told; }).value();
      EXPECT_EQ(told, 5) << device_bytes;
      EXPECT_EQ(stack->weight_stats().streamed_layers, device_bytes == 0 ? 0 : 4);
    });
  }
}

TEST(StackCallsTest, TracesNameTheSitesAndShowTheWorkBetweenThem) {
  const ModelConfig config = config_of("llama", 2);
  Problem problem;
  problem.layers = 2;
  problem.tokens = problem.sequence_length = 9;
  SiteSchedules schedules;
  const std::vector<Site> all_sites = sites(config, problem, 2).value();
  for (const Site& site : all_sites) schedules.emplace(site.name, spec::make_schedule(site.op, "hetero_fused_1d", 2));
  test::run_ranks(2, test::Mode::threads, [&](Runtime& runtime) {
    Channel& channel = runtime.world().channel(StreamRef::cpu());
    auto stack = Stack::create(config, problem, channel).value();
    expect_ok(stack->run_layers(schedules, 1));
    base::Trace trace;
    exec::set_trace(channel, &trace);
    expect_ok(stack->run_layers(schedules, 1));
    exec::set_trace(channel, nullptr);
    expect_ok(stack->run_layers(schedules, 1));
    EXPECT_TRUE(exec::collect_trace(channel).value().spans.empty());  // all are in `trace` already
    std::map<std::string, int> count;
    for (const base::Span& span : trace.spans) {
      EXPECT_EQ(span.rank, runtime.world().rank());
      EXPECT_LE(span.begin_ns, span.end_ns);
      if (span.category != "wait") ++count[span.name];
    }
    const std::map<std::string, int> once_per_layer = {
        {"attention", 2},        {"activation", 2},         {"rope", 2},
        {"add, norm", 5},        {"copy input", 1},         {"qkv gemm_own", 2},
        {"gate_up gemm_own", 2}, {"o_proj gemm_own", 2},    {"down gemm_own", 2},
        {"down reduce[s=1]", 2}, {"o_proj reduce[s=0]", 2}, {"qkv gemm_remote[s=1]", 2},
        {"qkv push[s=0,p=1]", 2}};
    for (const auto& [name, want] : once_per_layer) EXPECT_EQ(count[name], want) << name;
  });
}

TEST(StackCallsTest, OneRankWithBadWeightsFailsAllRanks) {
  const ScratchDir dir;
  // Only q_proj's last row, which rank 1 holds, is not a number.
  std::vector<TestTensor> tensors;
  const auto add = [&](const std::string& name, std::vector<int64_t> shape) {
    int64_t n = 1;
    for (int64_t size : shape) n *= size;
    std::vector<float> values(static_cast<size_t>(n), 0.5f);
    if (name.find("q_proj") != std::string::npos) values.back() = NAN;
    tensors.push_back({"model.layers.0." + name, "F32", std::move(shape), fp32_bytes(values)});
  };
  const ModelConfig config = config_of("llama", 2);
  const int64_t q = config.heads * config.head_dim, kv = config.kv_heads * config.head_dim;
  add("input_layernorm.weight", {config.hidden});
  add("self_attn.q_proj.weight", {q, config.hidden});
  add("self_attn.k_proj.weight", {kv, config.hidden});
  add("self_attn.v_proj.weight", {kv, config.hidden});
  add("self_attn.o_proj.weight", {config.hidden, q});
  add("post_attention_layernorm.weight", {config.hidden});
  add("mlp.gate_proj.weight", {config.intermediate, config.hidden});
  add("mlp.up_proj.weight", {config.intermediate, config.hidden});
  add("mlp.down_proj.weight", {config.hidden, config.intermediate});
  dir.write("model.safetensors", safetensors(tensors));
  Problem problem;
  problem.layers = 1;
  problem.tokens = problem.sequence_length = 4;
  problem.checkpoint = dir.path();
  test::run_ranks(2, test::Mode::threads, [&](Runtime& runtime) {
    const int rank = runtime.world().rank();
    Channel& channel = runtime.world().channel(StreamRef::cpu());
    const auto stack = Stack::create(config, problem, channel);
    ASSERT_FALSE(stack.ok()) << "rank " << rank;
    EXPECT_EQ(stack.status().code(), Errc::corrupt);
    const std::string place = base::format("element ({}, {}) is nan", q - 1, config.hidden - 1);
    EXPECT_NE(stack.status().message().find(place), std::string::npos) << stack.status().message();
    EXPECT_EQ(stack.status().message().starts_with("rank 1: "), rank == 0) << stack.status().message();
  });
}

TEST(StackCallsTest, OnlyTheRankThatHasAnExpertReadsIt) {
  const ScratchDir dir;
  const ModelConfig config = parse_config(R"({"model_type": "mixtral", "hidden_size": 8, "intermediate_size": 4,
      "num_hidden_layers": 1, "num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 2, "num_local_experts": 5,
      "num_experts_per_tok": 2})",
                                          "test")
                                 .value();
  std::vector<TestTensor> tensors;
  const auto add = [&](const std::string& name, int64_t rows, int64_t cols) {
    std::vector<int64_t> shape = rows == 0 ? std::vector<int64_t>{cols} : std::vector<int64_t>{rows, cols};
    tensors.push_back({"model.layers.0." + name, "F32", std::move(shape),
                       fp32_bytes(std::vector<float>(static_cast<size_t>(std::max<int64_t>(rows, 1) * cols), 0.5f))});
  };
  for (const char* norm : {"input_layernorm.weight", "post_attention_layernorm.weight"}) add(norm, 0, 8);
  for (const char* name : {"q", "k", "v"}) add(base::format("self_attn.{}_proj.weight", name), 6, 8);
  add("self_attn.o_proj.weight", 8, 6);
  add("block_sparse_moe.gate.weight", 5, 8);
  for (int e = 0; e < 5; ++e)
    for (const char* matrix : {"w1", "w2", "w3"}) {
      const bool is_down = matrix[1] == '2', is_bad = e == 2 && is_down;  // rank 1 has experts 1 and 2
      add(base::format("block_sparse_moe.experts.{}.{}.weight", e, matrix), is_down ? 8 : 4,
          is_down ? (is_bad ? 5 : 4) : 8);
    }
  dir.write("model.safetensors", safetensors(tensors));
  Problem problem;
  problem.layers = 1;
  problem.tokens = problem.sequence_length = 4;
  problem.checkpoint = dir.path();
  test::run_ranks(3, test::Mode::threads, [&](Runtime& runtime) {
    const int rank = runtime.world().rank();
    const auto stack = Stack::create(config, problem, runtime.world().channel(StreamRef::cpu()));
    ASSERT_FALSE(stack.ok()) << "rank " << rank;
    EXPECT_EQ(stack.status().code(), Errc::corrupt);
    const std::string message = dir / "model.safetensors" +
                                ": tensor \"model.layers.0.block_sparse_moe.experts.2.w2.weight\" has shape (8, 5), "
                                "wanted (8, 4)";
    EXPECT_EQ(stack.status().message(), rank == 1 ? message : "rank 1: " + message);
  });
}

}  // namespace
}  // namespace overlace::model
