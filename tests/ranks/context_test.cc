// One machine and one planner for all ranks.
#include "overlace/context.h"

#include <mutex>
#include <string>
#include <vector>

#include "overlace/error.h"
#include "tests/ranks/support/run_ranks.h"

namespace overlace::test {
namespace {

spec::OpSpec problem(int ranks) {
  spec::OpSpec op;
  op.op = "ag_gemm", op.m = 4096, op.n = 512, op.k = 512, op.ranks = ranks;
  op.dtype = op.out_dtype = DType::fp32;
  return op;
}

TEST(Context, WhatRankZeroFindsCountsForAll) {
  for (const Mode mode : all_modes()) {
    run_ranks(3, mode, [](Runtime& runtime) {
      const int rank = runtime.world().rank();
      const std::string mine = rank == 0 ? "1GB/s,100GFLOP/s" : rank == 1 ? "no such machine" : "cpu2";
      const Context context = Context::open(runtime, {.machine = mine});
      EXPECT_EQ(context.machine_origin(), "1GB/s,100GFLOP/s, the argument machine");
      EXPECT_EQ(context.machine(), spec::rated_machine({.link_bytes_per_s = 1e9, .flops_per_s = 1e11}));
      const auto plan = context.plan(problem(3));
      EXPECT_NE(plan->candidate.family, "library") << plan->reason;
      runtime.world().agree(plan->schedule.to_json(), "the plan");
    });
  }
}

TEST(Context, AFileOfManyNumbersReachesAllRanks) {
  run_ranks(2, Mode::threads, [](Runtime& runtime) {
    const Context context = Context::open(runtime, {.machine = runtime.world().rank() == 0 ? "cpu2" : ""});
    EXPECT_EQ(context.machine(), spec::find_machine("cpu2"));
    EXPECT_EQ(context.machine_origin(), "cpu2, the argument machine");
    EXPECT_EQ(context.plan(problem(2))->tier, plan::Tier::recurrence);
  });
}

TEST(Context, AMachineThatCannotBeReadIsAnErrorOnAllRanks) {
  run_ranks(2, Mode::threads, [](Runtime& runtime) {
    try {
      (void)Context::open(runtime, {.machine = runtime.world().rank() == 0 ? "h100" : ""});
      ADD_FAILURE() << "h100 is no machine";
    } catch (const InvalidArgument& error) {
      EXPECT_NE(std::string(error.what()).find("the argument machine is \"h100\""), std::string::npos) << error.what();
    }
    EXPECT_FALSE(Context::open(runtime).machine().has_costs()) << "the ranks go on";
  });
}

TEST(Context, RatesCountWhereThereIsNoFile) {
  run_ranks(2, Mode::threads, [](Runtime& runtime) {
    const spec::MachineRates rates = {.link_bytes_per_s = 1e9, .flops_per_s = 1e11};
    const Context measured = Context::open(runtime, {.rates = rates}), unknown = Context::open(runtime);
    EXPECT_EQ(measured.machine(), spec::rated_machine(rates));
    EXPECT_EQ(unknown.plan(problem(2))->reason, "the GEMM rate of this machine is unknown: library");
    const auto plan = measured.plan(problem(2));
    EXPECT_NE(plan->candidate.family, "library") << plan->reason;
    EXPECT_EQ(measured.plan(problem(2)), plan) << "kept";
    EXPECT_EQ(measured.plan(problem(2), 1)->candidate.family, "library") << "nothing else fits into one byte";
  });
}

TEST(Context, OutlivesTheRuntime) {
  std::mutex mutex;
  std::vector<Context> contexts;
  run_ranks(2, Mode::threads, [&](Runtime& runtime) {
    const Context context = Context::open(runtime, {.machine = "1GB/s,100GFLOP/s"});
    const std::lock_guard lock(mutex);
    contexts.push_back(context);
  });
  ASSERT_EQ(contexts.size(), 2u);
  for (const Context& context : contexts) EXPECT_NE(context.plan(problem(2))->candidate.family, "library");
}

}  // namespace
}  // namespace overlace::test
