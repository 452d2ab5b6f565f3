#include "cli/run/plan.h"

#include <gtest/gtest.h>

namespace overlace::cli {
namespace {

base::Env environment(const std::vector<std::string>& block = {}) { return base::Env::parse(block).value(); }

Surroundings with_gpus(int gpus) {
  Surroundings out;
  out.gpus = gpus;
  out.why_no_gpu = "no driver";
  return out;
}

base::Status refusal(const RunOptions& options, const Surroundings& around = {}, const base::Env& env = environment()) {
  const auto plan = make_plan(options, env, around);
  return plan.ok() ? base::Status() : plan.status();
}

TEST(Plan, TakesTwoCpuRanksAndAnEmulatedLinkWithoutGpus) {
  const auto plan = make_plan({}, environment(), {});
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan->backend, Backend::cpu);
  EXPECT_EQ(plan->ranks, 2);
  EXPECT_TRUE(plan->link.enabled);
  EXPECT_EQ(plan->link.to_string(), kDefaultLink);
  EXPECT_EQ(plan->config.name, "tiny");
  EXPECT_EQ(plan->problem.layers, 2);
  EXPECT_EQ(plan->problem.dtype, DType::fp32);
  EXPECT_EQ(plan->problem.tokens % plan->problem.sequence_length, 0);
  EXPECT_EQ(plan->sites.size(), 4u);
  EXPECT_TRUE(plan->request.by_site.empty());
}

TEST(Plan, EmulatesHostsOfEqualSizeBetweenCpuRanks) {
  RunOptions options;
  options.ranks = 4;
  options.emulate_hosts = 2;
  const auto plan = make_plan(options, environment(), {});
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan->hosts, 2);
  EXPECT_EQ(plan->link.to_string(), std::string(kDefaultLink) + ",hosts");
  for (const int64_t hosts : {1, 3, 5, 0}) {
    options.emulate_hosts = hosts;
    EXPECT_NE(refusal(options).message().find("divisor of the 4 ranks"), std::string::npos) << hosts;
  }
  options.emulate_hosts = 2;
  options.threads = true;
  EXPECT_EQ(refusal(options).code(), Errc::invalid_argument);
  options.threads = false;
}

TEST(Plan, EmulatesHostsBetweenGpus) {
  RunOptions options;
  options.ranks = 4;
  options.emulate_hosts = 2;
  const auto plan = make_plan(options, environment(), with_gpus(4));
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan->backend, Backend::cuda_peer);
  EXPECT_EQ(plan->hosts, 2);
  EXPECT_FALSE(plan->link.enabled);
  options.emulate_hosts = 3;
  EXPECT_NE(refusal(options, with_gpus(4)).message().find("divisor of the 4 ranks"), std::string::npos);
  options.emulate_hosts = 2;
  options.threads = true;
  EXPECT_EQ(refusal(options, with_gpus(4)).code(), Errc::invalid_argument);
}

Surroundings on_hosts(int ranks, const Placement& placement) {
  Surroundings out;
  out.started_ranks = ranks;
  out.placement = placement;
  return out;
}

TEST(Plan, TakesHostsAsTheRanksFoundThem) {
  const auto plan = make_plan({}, environment(), on_hosts(4, {.hosts = 2, .ranks_here = 2}));
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan->hosts, 2);
  EXPECT_EQ(plan->ranks_here(), 2);
  EXPECT_FALSE(plan->link.enabled);  // there is a network
  EXPECT_FALSE(plan->is_emulated());
  RunOptions options;
  options.schedule = "hierarchical:2";
  const auto once = make_plan(options, environment(), on_hosts(4, {.hosts = 2, .ranks_here = 2}));
  ASSERT_TRUE(once.ok()) << once.status().message();
  EXPECT_EQ(std::get<int64_t>(once->request.by_site.at("qkv").params.at("hosts")), 2);
  EXPECT_TRUE(make_plan({}, environment({"OVERLACE_LINK=1GB/s,5us"}), on_hosts(4, {.hosts = 2}))->is_emulated());
  EXPECT_TRUE(make_plan({}, environment(), on_hosts(4, {.hosts = 2, .is_emulated = true}))->is_emulated());
}

TEST(Plan, MakesNoUseOfHostsThatDiffer) {
  const Surroundings around = on_hosts(4, {.hosts = 2, .ranks_here = 3, .is_regular = false});
  EXPECT_EQ(make_plan({}, environment(), around)->hosts, 1);
  RunOptions options;
  options.schedule = "hierarchical";
  EXPECT_EQ(refusal(options, around).message(),
            "--schedule is hierarchical, but the 4 ranks are on 2 hosts of unequal size or not numbered host by host, "
            "wanted such hosts (mpirun --map-by slot) or another schedule");
  options.schedule = "hierarchical:4";
  EXPECT_NE(refusal(options, around).message().find("hosts of unequal size"), std::string::npos);
  options.schedule = "hierarchical_of_mine.json";  // a file, which says itself what it needs
  EXPECT_EQ(refusal(options, around).message().find("hosts of unequal size"), std::string::npos);
}

TEST(Plan, LooksForPlacesToWriteToWhereRankZeroIs) {
  RunOptions options;
  options.json = "/no/such/directory/r.json";
  Surroundings around = on_hosts(2, {});
  EXPECT_EQ(refusal(options, around).code(), Errc::io);
  around.rank = 1;
  EXPECT_TRUE(refusal(options, around).ok());
}

TEST(Plan, TakesTheGpusIfThereAreAny) {
  for (const auto& [gpus, ranks] : std::map<int, int>{{1, 1}, {2, 2}, {3, 2}, {4, 4}, {8, 4}}) {
    const auto plan = make_plan({}, environment(), with_gpus(gpus));
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    EXPECT_EQ(plan->backend, Backend::cuda_peer);
    EXPECT_EQ(plan->ranks, ranks) << gpus;
    EXPECT_FALSE(plan->link.enabled);
    EXPECT_EQ(plan->config.name, "Llama-3.1-8B");
    EXPECT_EQ(plan->problem.layers, 1);
    EXPECT_EQ(plan->problem.dtype, DType::bf16);
  }
}

TEST(Plan, PrefersOptionsToVariablesToDefaults) {
  RunOptions options;
  EXPECT_EQ(make_plan(options, environment({"OVERLACE_BACKEND=cpu"}), with_gpus(4))->backend, Backend::cpu);
  EXPECT_EQ(make_plan(options, environment({"OVERLACE_LINK=1GB/s,5us"}), {})->link.to_string(), "1GB/s,5us");
  options.link = "2GB/s,20us";
  EXPECT_EQ(make_plan(options, environment({"OVERLACE_LINK=1GB/s,5us"}), {})->link.to_string(), "2GB/s,20us");
  options.link = "none";
  EXPECT_FALSE(make_plan(options, environment({"OVERLACE_LINK=1GB/s,5us"}), {})->link.enabled);
  options.link = std::nullopt;
  options.backend = "cuda_peer";
  EXPECT_EQ(make_plan(options, environment({"OVERLACE_BACKEND=cpu"}), with_gpus(2))->backend, Backend::cuda_peer);
}

TEST(Plan, AsksForNoMoreGpusThanThereAre) {
  RunOptions options;
  options.ranks = 8;
  const base::Status status = refusal(options, with_gpus(4));
  EXPECT_EQ(status.code(), Errc::not_supported);
  EXPECT_NE(status.message().find("--ranks is 8"), std::string::npos);
  EXPECT_NE(status.message().find("4 usable GPUs"), std::string::npos);
}

TEST(Plan, EmulatesNoLinkBetweenGpus) {
  RunOptions options;
  options.backend = "cuda_peer";
  options.link = "2GB/s,20us";
  EXPECT_EQ(refusal(options, with_gpus(4)).code(), Errc::not_supported);
  options.backend = "auto";  // who wants a link wants CPU ranks
  EXPECT_EQ(make_plan(options, environment(), with_gpus(4))->backend, Backend::cpu);
}

TEST(Plan, NamesWhyThereIsNoGpu) {
  RunOptions options;
  options.backend = "cuda_peer";
  const base::Status status = refusal(options, with_gpus(0));
  EXPECT_EQ(status.code(), Errc::not_supported);
  EXPECT_NE(status.message().find("no driver"), std::string::npos);
}

TEST(Plan, HasAsManyRanksAsWereStarted) {
  Surroundings around;
  around.started_ranks = 4;
  EXPECT_EQ(make_plan({}, environment(), around)->ranks, 4);
}

TEST(Plan, NeedsNoLinkForOneRank) {
  RunOptions options;
  options.ranks = 1;
  EXPECT_FALSE(make_plan(options, environment(), {})->link.enabled);
}

TEST(Plan, FillsInTheSequenceLength) {
  RunOptions options;
  options.tokens = 96;
  EXPECT_EQ(make_plan(options, environment(), {})->problem.sequence_length, 96);
  options.sequence_length = 32;
  EXPECT_EQ(make_plan(options, environment(), {})->problem.sequence_length, 32);
  options.tokens = std::nullopt;
  options.sequence_length = 300;
  const auto plan = make_plan(options, environment(), {});
  EXPECT_EQ(plan->problem.sequence_length, 300);
  EXPECT_EQ(plan->problem.tokens % 300, 0);
  EXPECT_GE(plan->problem.tokens, 300);
}

TEST(Plan, MakesTheSchedulesThatWereAskedFor) {
  RunOptions options;
  options.schedule = "uniform_fused_1d:4";
  const auto plan = make_plan(options, environment(), {});
  ASSERT_TRUE(plan.ok());
  ASSERT_EQ(plan->request.by_site.size(), 4u);
  EXPECT_EQ(plan->request.by_site.at("qkv").op, "ag_gemm");
  EXPECT_EQ(plan->request.by_site.at("down").family, "uniform_fused_1d_rs");
  EXPECT_EQ(plan->request.reason, "asked for: --schedule uniform_fused_1d:4");
}

TEST(Input, IsAFunctionOfTheSeed) {
  RunOptions options;
  options.tokens = 8;
  options.sequence_length = 8;
  const auto plan = make_plan(options, environment(), {});
  const auto first = read_input(options, *plan), again = read_input(options, *plan);
  ASSERT_EQ(first->size(), static_cast<size_t>(8 * plan->config.hidden));
  EXPECT_EQ(*first, *again);
  options.seed = 1;
  EXPECT_NE(*first, *read_input(options, *make_plan(options, environment(), {})));
}

}  // namespace
}  // namespace overlace::cli
