#include "cli/run/memory.h"

#include <gtest/gtest.h>

namespace overlace::cli {
namespace {

RunPlan plan_of(const char* config, int64_t layers, int64_t tokens) {
  RunOptions options;
  options.config = config;
  options.layers = layers;
  options.tokens = tokens;
  return make_plan(options, base::Env::parse({}).value(), {}).value();
}

TEST(Memory, HoldsTheInboxesOfAllSites) {
  const RunPlan plan = plan_of("tiny", 2, 32768);
  const auto heap = heap_bytes(plan);
  ASSERT_TRUE(heap.ok()) << heap.status().message();
  // qkv and gate_up gather (tokens, hidden) fp32; o_proj and down receive a slot of their rows from the other rank.
  EXPECT_GT(*heap, uint64_t{2} * 32768 * 512 * 4);
  EXPECT_LT(*heap, uint64_t{100} * 32768 * 512 * 4);
  EXPECT_GT(*heap_bytes(plan_of("tiny", 2, 65536)), *heap);
}

TEST(Memory, IsThatOfTheRanksOfThisHost) {
  RunPlan plan = plan_of("Llama-3.1-8B", 1, 512);
  const double all = host_bytes(plan, 1000);
  plan.placement = {.hosts = 2, .ranks_here = 1};
  const double half = host_bytes(plan, 1000);
  // Weights are shared; the oracle, twice as wide as fp32, is whole on one host, and which one is not asked.
  EXPECT_LT(half, all - 0.5 * 218e6 * 4);
  EXPECT_GT(half, 218e6 * 8);
  EXPECT_EQ(host_bytes(plan, 2000) - half, 1000);
}

TEST(Memory, GrowsWithLayersAndTokens) {
  const RunPlan one = plan_of("Llama-3.1-8B", 1, 512), four = plan_of("Llama-3.1-8B", 4, 512);
  // 218 M weights a layer, 4 bytes each.
  const double layer = (host_bytes(four, 0) - host_bytes(one, 0)) / 3;
  EXPECT_NEAR(layer, 218.1e6 * 4, 0.01 * layer);
  EXPECT_GT(host_bytes(plan_of("Llama-3.1-8B", 1, 1024), 0), host_bytes(one, 0));
  EXPECT_EQ(host_bytes(one, 1000) - host_bytes(one, 0), 2000);
}

TEST(Memory, CountsExpertsInTheLayersThatHaveThem) {
  const RunPlan one = plan_of("Qwen3-30B-A3B", 1, 64), three = plan_of("Qwen3-30B-A3B", 3, 64);
  // 128 experts of 3 x 2048 x 768, their router, and attention: q and o of 2048 x 4096, k and v of 2048 x 512.
  const double layer = (host_bytes(three, 0) - host_bytes(one, 0)) / 2;
  EXPECT_NEAR(layer, (128 * (3 * 2048.0 * 768 + 2048) + 2 * 2048.0 * (4096 + 512)) * 4, 0.01 * layer);
  RunPlan mixed = three;
  mixed.config.experts.layers[1] = false;
  EXPECT_NEAR(host_bytes(three, 0) - host_bytes(mixed, 0), 128 * 3 * 2048.0 * 768 * 4, 0.01 * layer);
  EXPECT_LT(host_bytes(one, 0), 1.2 * layer) << "the oracle holds one expert at a time";
}

TEST(Memory, CountsTheSumsOfExpertsInFp32) {
  // What a token takes more in fp32 than in bf16: attention's columns, of 8 copies the input, output and inner rows,
  // and six rows of hidden states. The products before and behind the inner rows are fp32 in both.
  const auto more = [](int64_t tokens) {
    RunPlan plan = plan_of("Qwen3-30B-A3B", 1, tokens);
    const double fp32 = host_bytes(plan, 0);
    plan.problem.dtype = DType::bf16;
    return fp32 - host_bytes(plan, 0);
  };
  const double token = 2.0 * (4096 + 2 * 512 + 4096 + 8 * (768 + 2 * 2048) + 6 * 2048);
  EXPECT_NEAR((more(1064) - more(64)) / 1000, token, 1e-6 * token);
}

TEST(Memory, CountsNoExpertsOfLayersThatDoNotRun) {
  RunPlan plan = plan_of("Qwen3-30B-A3B", 1, 64);
  plan.config.experts.layers[0] = false;
  const double dense = host_bytes(plan, 0);
  plan.config.experts = {};
  EXPECT_EQ(dense, host_bytes(plan, 0));
}

TEST(Memory, RefusesWhatDoesNotFitWithBothNumbers) {
  const RunPlan plan = plan_of("tiny", 2, 1024);
  EXPECT_TRUE(check_memory(plan, {.physical = 16e9}).ok());
  for (const HostMemory& host : {HostMemory{.physical = 1e6}, HostMemory{.physical = 16e9, .limit = 1e6}}) {
    const base::Status status = check_memory(plan, host);
    EXPECT_EQ(status.code(), Errc::out_of_memory);
    EXPECT_NE(status.message().find("this host has 0.0 GiB"), std::string::npos) << status.message();
  }
}

TEST(Memory, CountsWhatGpuRanksStream) {
  RunOptions options;
  options.config = "Qwen3-32B";
  options.layers = 64;
  options.tokens = 16384;
  options.sequence_length = 4096;
  Surroundings around;
  around.gpus = 2;
  const auto plan_with = [&](int64_t ranks, const char* device_memory) {
    options.ranks = ranks;
    options.device_memory = device_memory;
    return make_plan(options, base::Env::parse({}).value(), around).value();
  };
  // 487.6 M weights a layer, 2 bytes each; 11 of 64 layers stay beside the activations and two slots.
  const RunPlan one = plan_with(1, "16GiB");
  EXPECT_EQ(one.backend, Backend::cuda_peer);
  EXPECT_NEAR(streamed_host_bytes(one), 53 * 2 * 487.6e6, 1e8);
  EXPECT_EQ(streamed_host_bytes(plan_with(1, "100GiB")), 0);
  RunPlan disk = one;
  disk.problem.from_disk = true;
  disk.problem.checkpoint = "of some model";
  EXPECT_NEAR(streamed_host_bytes(disk), 4 * 2 * 487.6e6, 1e7);
  const RunPlan two = plan_with(2, "8GiB");
  EXPECT_GT(streamed_host_bytes(two), 50 * 2 * 487.6e6);
  EXPECT_TRUE(check_memory(one, {.physical = 1e9}).ok()) << "it may grow, and pinned memory is refused by the driver";
  EXPECT_TRUE(check_memory(one, {.physical = 1e9, .limit = 64e9}).ok());
  const base::Status status = check_memory(one, {.physical = 64e9, .limit = 32e9});
  EXPECT_EQ(status.code(), Errc::out_of_memory);
  EXPECT_NE(status.message().find("what streams to 1 ranks takes 48.1 GiB of host memory, the control group "
                                  "allows 29.8 GiB"),
            std::string::npos)
      << status.message();
}

TEST(Memory, CountsActivationsThatGpuRanksPin) {
  RunOptions options;
  options.config = "Qwen3-32B";
  options.layers = 64;
  options.tokens = 16384;
  options.sequence_length = 4096;
  options.micro_batch = 4096;
  options.ranks = 1;
  Surroundings around;
  around.gpus = 1;
  const auto bytes_with = [&](const char* device_memory) {
    options.device_memory = device_memory;
    return streamed_host_bytes(make_plan(options, base::Env::parse({}).value(), around).value());
  };
  // Input and streams, 16384 x 5120 bf16 each, leave where two layers of 975 MB do not fit beside 1.4 GB.
  EXPECT_NEAR(bytes_with("3GiB"), 64 * 2 * 487.6e6 + 2 * 16384 * 5120 * 2, 1e7);
  EXPECT_NEAR(bytes_with("3277MiB"), 64 * 2 * 487.6e6, 1e7);
}

TEST(Memory, KnowsTheHost) { EXPECT_GT(std::min(host_memory().physical, host_memory().limit), 64e6); }

}  // namespace
}  // namespace overlace::cli
