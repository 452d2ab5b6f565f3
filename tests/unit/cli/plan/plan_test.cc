#include "cli/plan/plan.h"

#include <gtest/gtest.h>

#include "cli/problem.h"
#include "overlace/error.h"
#include "src/sim/schedule/simulation.h"

namespace overlace::cli {
namespace {

/// Products at 1 TFLOP/s, copies at 2 GB/s with 10 us each, nothing else.
spec::Machine plain() {
  spec::Machine out;
  out.name = "plain";
  out.date = "2026-01-02";
  out.ranks = 2;
  out.gemm.tiles = {{1, 1, {0.001}, {0}}};
  out.gemm.sustained_TFLOPs = {1};
  out.copy.start_us = {10};
  out.copy.peer_GBps = out.copy.all_GBps = out.copy.local_GBps = {2};
  out.link.egress_GBps = out.link.ingress_GBps = {2};
  out.memory.hbm_GBps = out.memory.reduce_GBps = {1000};
  out.collectives.all_gather_us = {{{1, 400}, {2, 400}}};
  return out;
}

TEST(PlanText, ShowsTheChosenBesideTheOthersAndWhy) {
  const spec::Machine machine = plain();
  const spec::OpSpec op = op_of("ag_gemm", 1024, 512, 512, 0, "bf16", machine, 64);
  const auto found = plan::Planner(machine).plan(op);
  const std::string text = plan_text(op, *found, machine);
  EXPECT_EQ(text.find("ag_gemm M 1024 N 512 K 512 G 2 bf16 | machine plain (digest "), 0u) << text;
  EXPECT_NE(text.find(", 2026-01-02, 100 % of its numbers are priors) | recurrence\n"), std::string::npos) << text;
  // 536.9 us of products, half of them before a transfer of 272.1 us has come; in two parts it has in time, which gains
  // less than 2 %.
  EXPECT_NE(text.find("  hetero_fused_1d q 2          536.9  447.4..644.2        1.75x\n"), std::string::npos) << text;
  EXPECT_NE(text.find("  library                      936.9  780.7..1124.2       1.00x\n"), std::string::npos) << text;
  EXPECT_NE(text.find("> hetero_fused_1d q 1          540.6  450.5..648.7        1.73x\n"), std::string::npos) << text;
  EXPECT_NE(text.find("\nrecurrence: hetero_fused_1d q 1 540.6 us, 42.3 % less than library; too little gained by "
                      "hetero_fused_1d q 2 536.9 us"),
            std::string::npos)
      << text;

  const std::string falls = waterfall_text(op, *found, machine);
  EXPECT_NE(falls.find("  ideal                                            536.9"), std::string::npos) << falls;
  EXPECT_NE(falls.find("  sum                                              540.6"), std::string::npos) << falls;
  EXPECT_NE(falls.find("no overlap"), std::string::npos) << falls;
}

/// What an operator has besides sizes, by name.
TEST(Fields, PoseAProblem) {
  const spec::Machine machine = plain();
  const auto posed = [&](const std::vector<std::string>& words) {
    spec::OpSpec op = op_of("embedding_a2a", 0, 8, 0, 0, "fp32", machine, 64);
    set_fields(&op, words);
    return op;
  };
  const auto refusal = [&](const char* word) -> std::string {
    try {
      (void)posed({word});
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(refusal("batch"), "--field is 'batch', wanted NAME=VALUE or NAME=@FILE");
  EXPECT_EQ(refusal("batch=many"), "--field batch is 'many', wanted an integer");
  EXPECT_EQ(refusal("depth=3"), "--field: embedding_a2a has no field 'depth'");
  EXPECT_NE(refusal("placement=@/no/such/file").find("/no/such/file"), std::string::npos);
  const spec::OpSpec op = posed({"batch=64", "mode=sum", "bounds=error",
                                 R"(placement={"tables":[{"rows":4,"dim":8}],)"
                                 R"("features":[{"table":0,"rank":1,"column":0}]})"});
  EXPECT_EQ(op.m, 64);
  const sim::Simulation simulation;
  const auto found = plan::Planner(machine, {.simulation = &simulation}).plan(op, {.limit = plan::Tier::simulation});
  EXPECT_NE(plan_text(op, *found, machine).find("> "), std::string::npos);
  EXPECT_EQ(found->tier, plan::Tier::simulation) << found->reason;
}

/// Columns are as many bytes as rows are, and planned alike.
TEST(PlanText, OfColumnsSaysTheirBlocks) {
  const spec::Machine machine = plain();
  for (const char* name : {"gemm_a2a", "a2a_gemm"}) {
    spec::OpSpec op = op_of(name, 1024, 512, 512, 0, "bf16", machine, 64);
    op.exchange = exchange_of("cols");
    op.blocks = {256, 128, 128};
    const auto found = plan::Planner(machine).plan(op);
    EXPECT_EQ(plan_text(op, *found, machine).find(op.op + " M 1024 N 512 K 512 G 2 bf16 cols 256 128 128 | machine"),
              0u);
    EXPECT_EQ(found->schedule.tables.at("block"), (std::vector<int64_t>{0, 256, 384, 512}));
    EXPECT_TRUE(check_report(found->schedule, machine).ok());
    op.blocks = {};
    EXPECT_NE(plan::Planner(machine).plan(op)->schedule.tables.at("block"), found->schedule.tables.at("block"));
  }
  EXPECT_THROW((void)exchange_of("both"), InvalidArgument);
}

TEST(PlanText, AMachineWithoutNumbersHasARuleOnly) {
  spec::Machine bare;
  bare.name = "bare";
  bare.is_gpu = true;
  bare.ranks = 4;
  const spec::OpSpec op = op_of("gemm_rs", 8192, 8192, 2048, 0, "bf16", bare, 64);
  const auto found = plan::Planner(bare).plan(op);
  EXPECT_NE(plan_text(op, *found, bare).find("| rule\n> library\n"), std::string::npos) << plan_text(op, *found, bare);
  EXPECT_EQ(waterfall_text(op, *found, bare), "");
  // One rank on a machine with numbers: nothing else to compare with.
  const spec::Machine machine = plain();
  const spec::OpSpec lone = op_of("ag_gemm", 1024, 512, 512, 1, "bf16", machine, 64);
  const std::string text = waterfall_text(lone, *plan::Planner(machine).plan(lone), machine);
  EXPECT_NE(text.find("library"), std::string::npos) << text;
  EXPECT_EQ(text.find("loses most"), std::string::npos) << text;
}

TEST(PlanText, AnActivationIsPartOfTheProblem) {
  spec::Machine machine = plain();
  machine.latency.launch_us = {5};
  spec::OpSpec op = op_of("ag_gemm", 1024, 512, 512, 0, "bf16", machine, 64);
  const auto without = plan::Planner(machine).plan(op);
  op.activation = activation_of("swiglu");
  const auto found = plan::Planner(machine).plan(op);
  const std::string text = plan_text(op, *found, machine);
  EXPECT_EQ(text.find("ag_gemm M 1024 N 512 K 512 G 2 bf16 swiglu | machine plain (digest "), 0u) << text;
  EXPECT_NE(found->key, without->key);
  // Behind the products of a library stands a launch that reads all sums and writes half as many, 1.6 MB at 1 TB/s.
  const auto us_of_library = [](const plan::Plan& plan) {
    for (const plan::Alternative& a : plan.others)
      if (a.candidate.family == "library") return a.us;
    return 0.0;
  };
  EXPECT_NEAR(us_of_library(*found) - us_of_library(*without), 5 + 1.5 * 1024 * 512 * 2 * 1e-6, 0.2);
}

TEST(PlanText, LanesOfOneRankAsCharacters) {
  const spec::Machine machine = plain();
  const spec::OpSpec op = op_of("ag_gemm", 1024, 512, 512, 0, "bf16", machine, 64);
  const std::string text = timeline_text(spec::make_schedule(op, "hetero_fused_1d", 1), machine, 40);
  EXPECT_EQ(text.find("\nrank 0, "), 0u) << text;
  // The copy takes half of the time, the products all of it.
  EXPECT_NE(text.find("  ce 0  ==================="), std::string::npos) << text;
  EXPECT_NE(text.find("....\n"), std::string::npos) << text;
  EXPECT_NE(text.find("  sm 0  ###################"), std::string::npos) << text;
}

TEST(PlanProblem, NamesTheOption) {
  const spec::Machine machine = plain();
  const auto message = [&](int64_t m, int64_t k, int ranks, const char* dtype) {
    try {
      (void)op_of("ag_gemm", m, 8, k, ranks, dtype, machine, 64);
    } catch (const InvalidArgument& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(message(0, 8, 0, "bf16"), "--m is 0, wanted at least 1");
  EXPECT_EQ(message(8, -3, 0, "bf16"), "--k is -3, wanted at least 1");
  EXPECT_EQ(message(8, 8, 65, "bf16"), "--ranks is 65, wanted 1 to 64");
  EXPECT_EQ(message(8, 8, 0, "int8"), "--dtype is int8, wanted fp64, fp32, fp16 or bf16");
  EXPECT_EQ(message(8, 8, 0, "fp16"), "");
}

}  // namespace
}  // namespace overlace::cli
