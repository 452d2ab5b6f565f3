// The plan against a search over everything that it may choose, and against numbers done by hand.
#include "src/model/offload_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "src/model/layer_stream.h"
#include "src/model/sharding.h"

namespace overlace::model {
namespace {

constexpr OffloadRates kRates = {700e12, 55e9, 1.7e9};

Problem offloaded_problem(const ModelConfig& config, int64_t tokens, int64_t length, int64_t device_bytes) {
  Problem problem;
  problem.layers = config.layers;
  problem.tokens = tokens;
  problem.sequence_length = length;
  problem.dtype = DType::bf16;
  problem.device_bytes = device_bytes;
  return problem;
}

TEST(OffloadPlan, IsAsGoodAsTheBestOfAllSettings) {
  const ModelConfig config = load_config("Qwen3-8B").value();
  int streamed_plans = 0, resting_plans = 0, refused = 0;
  for (const int ranks : {1, 2}) {
    for (const int64_t device_mib : {512, 1 << 10, 2 << 10, 4 << 10, 8 << 10, 12 << 10, 24 << 10}) {
      for (const int64_t host_gib : {0, 5, 64}) {
        for (const int64_t tokens : {512, 4096, 65536}) {
          const Problem problem = offloaded_problem(config, tokens, 512, device_mib << 20);
          const auto plan = plan_offload(config, problem, ranks, host_gib << 30, kRates);
          constexpr double kNone = std::numeric_limits<double>::infinity();
          double best_in_host_s = kNone, best_of_others_s = kNone;  // by whether activations have room in the host
          for (int64_t batch = 512; batch <= tokens; batch += 512) {
            Problem with = problem;
            with.micro_batch = batch;
            const Shard shard = make_shard(config, with, 0, ranks).value();
            const int64_t layer = LayerLayout(config, shard, with.dtype).bytes();
            const bool rests =
                problem.device_bytes < activation_bytes(config, with, shard) + 2 * layer && batch < tokens;
            const int64_t room = problem.device_bytes - activation_bytes(config, with, shard, rests);
            const int64_t moved = rests ? tokens / ranks * config.hidden * 2 : 0;
            for (int64_t resident = 0; resident <= config.layers; ++resident) {
              const int64_t slots = resident == config.layers ? 0 : 2;
              if ((resident + slots) * layer > room) continue;
              const int64_t left = std::max<int64_t>((host_gib << 30) - 2 * moved * ranks, 0);
              const int64_t host = std::min(config.layers - resident, left / (layer * ranks));
              const auto bytes = static_cast<double>(layer);
              const double way = static_cast<double>(config.layers * moved);
              const double link_s = (way + std::max(static_cast<double>(config.layers - resident) * bytes, way)) /
                                    kRates.host_bytes_per_s;
              const double disk_s =
                  static_cast<double>(config.layers - resident - host) * bytes * ranks / kRates.disk_bytes_per_s;
              const double compute_s =
                  static_cast<double>(config.layers) * layer_flops(config, with, ranks, tokens) / kRates.flops_per_s;
              double& best_s = 2 * moved * ranks <= host_gib << 30 ? best_in_host_s : best_of_others_s;
              best_s = std::min(best_s, std::max({link_s, disk_s, compute_s}));
            }
          }
          const double best_s = best_in_host_s < kNone ? best_in_host_s : best_of_others_s;
          ASSERT_EQ(plan.ok(), best_s < kNone);
          if (!plan.ok()) {
            EXPECT_EQ(plan.status().code(), Errc::out_of_memory);
            ++refused;
            continue;
          }
          EXPECT_LE(plan->total_s(), 1.05 * best_s);
          EXPECT_GE(plan->total_s(), best_s * (1 - 1e-12));
          EXPECT_EQ(plan->resident + plan->host + plan->disk, config.layers);
          streamed_plans += plan->host + plan->disk > 0 ? 1 : 0;
          resting_plans += plan->resting_bytes > 0 ? 1 : 0;
        }
      }
    }
  }
  EXPECT_GT(streamed_plans, 30);
  EXPECT_GT(resting_plans, 5);
  EXPECT_GT(refused, 3);
}

TEST(OffloadPlan, SaysFromHowManyTokensOnTransfersAreHidden) {
  // 2 T E operations of E elements, 2 E bytes of them: T = 700e12 / 55e9 = 12,727; attention makes it a little less.
  const ModelConfig config = load_config("Llama-3.1-70B").value();
  const auto plan =
      plan_offload(config, offloaded_problem(config, 16384, 128, int64_t{8} << 30), 1, int64_t{1} << 40, kRates);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan->disk, 0);
  EXPECT_EQ(plan->binds(), "compute");
  const double all = static_cast<double>(config.layers) / static_cast<double>(plan->host);
  EXPECT_NEAR(static_cast<double>(plan->hiding_tokens.value()) * all, 700e12 / 55e9, 0.01 * 700e12 / 55e9);
  const auto from_disk = plan_offload(config, offloaded_problem(config, 16384, 128, int64_t{8} << 30), 1, 0, kRates);
  ASSERT_TRUE(from_disk.ok());
  EXPECT_EQ(from_disk->host, 0);
  EXPECT_EQ(from_disk->binds(), "disk");
  const double from_there = static_cast<double>(config.layers) / static_cast<double>(from_disk->disk);
  EXPECT_NEAR(static_cast<double>(from_disk->hiding_tokens.value()) * from_there, 700e12 / 1.7e9,
              0.01 * 700e12 / 1.7e9);
  const auto few =
      plan_offload(config, offloaded_problem(config, 1024, 128, int64_t{8} << 30), 1, int64_t{1} << 40, kRates);
  ASSERT_TRUE(few.ok());
  EXPECT_EQ(few->binds(), "host link");
}

/// 65,536 tokens of 4096 bf16 are 512 MiB each way and layer, and three of them do not fit into 2 GiB beside two slots.
TEST(OffloadPlan, CountsActivationsBothWays) {
  ModelConfig config = load_config("Llama-3.1-8B").value();
  const Problem problem = offloaded_problem(config, 65536, 4096, int64_t{2} << 30);
  const auto plan = plan_offload(config, problem, 1, int64_t{1} << 40, kRates).value();
  EXPECT_EQ(plan.resting_bytes, int64_t{1} << 30);
  EXPECT_GT(plan.host, 25);
  const double way = 32.0 * (1 << 29), weights = static_cast<double>(plan.host * plan.layer_bytes);
  EXPECT_NEAR(plan.host_s, (way + std::max(way, weights)) / kRates.host_bytes_per_s, 1e-9);
  EXPECT_EQ(plan.binds(), "compute");
  const double of_token = plan.compute_s - way / kRates.host_bytes_per_s;
  EXPECT_NEAR(static_cast<double>(plan.hiding_tokens.value()), 65536 * weights / kRates.host_bytes_per_s / of_token,
              65536 * 0.01);
  EXPECT_EQ(plan_offload(config, problem, 1, (int64_t{1} << 30) + 3 * plan.layer_bytes, kRates)->host, 3)
      << "what rests takes its part of the host's memory";
  // Half as much computation as bytes: no number of tokens hides them.
  const OffloadRates fast{100 * kRates.flops_per_s, kRates.host_bytes_per_s, kRates.disk_bytes_per_s};
  EXPECT_FALSE(plan_offload(config, problem, 1, int64_t{1} << 40, fast)->hiding_tokens.has_value());
}

/// Taken away, activations would leave room for three layers, whose bytes come from the disk else, but there is no host
/// memory for them.
TEST(OffloadPlan, LeavesActivationsWhereTheHostHasNoRoom) {
  const ModelConfig config = load_config("Llama-3.1-8B").value();
  const Problem problem = offloaded_problem(config, 65536, 512, 2'600'000'000);
  const OffloadPlan plan = plan_offload(config, problem, 1, 0, kRates).value();
  EXPECT_EQ(plan.micro_batch, 512);
  EXPECT_EQ(plan.resting_bytes, 0);
  EXPECT_EQ(plan.disk, config.layers);
  EXPECT_GT(plan_offload(config, problem, 1, int64_t{2} << 30, kRates)->resting_bytes, 0);
}

TEST(OffloadPlan, RefusesWhatCannotBe) {
  const ModelConfig config = load_config("tiny").value();
  Problem problem = offloaded_problem(config, 32, 32, int64_t{1} << 30);
  EXPECT_EQ(plan_offload(config, problem, 2, -1, kRates).status().message(), "host memory is -1, wanted 0 or more");
  EXPECT_EQ(plan_offload(config, problem, 2, 0, {0, 1, 1}).status().message(), "a rate is 0, wanted more than 0");
  EXPECT_EQ(plan_offload(config, problem, 3, 0, kRates).status().code(), Errc::invalid_argument) << "heads";
  const auto fits = plan_offload(config, problem, 2, 0, kRates);
  ASSERT_TRUE(fits.ok());
  EXPECT_EQ(fits->resident, config.layers);
  EXPECT_EQ(fits->hiding_tokens, 0);
  problem.device_bytes = 1000;
  EXPECT_EQ(plan_offload(config, problem, 2, 0, kRates).status().code(), Errc::out_of_memory);
}

}  // namespace
}  // namespace overlace::model
