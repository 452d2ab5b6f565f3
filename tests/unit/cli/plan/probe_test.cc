#include "cli/plan/probe.h"

#include <gtest/gtest.h>

#include "cli/thread_ranks.h"
#include "overlace/error.h"

namespace overlace::cli {
namespace {

constexpr int kRanks = 2;

spec::OpSpec small_problem() {
  spec::OpSpec op;
  op.op = "gemm_rs";
  op.m = 96;
  op.n = 64;
  op.k = 32;
  op.ranks = kRanks;
  op.dtype = op.out_dtype = DType::fp32;
  return op;
}

TEST(PlanProbe, PlansOnAllRanks) {
  const spec::Machine machine = spec::find_machine("cpu2");
  const auto plan = plan_by_probe(small_problem(), machine, {.limit = plan::Tier::probe}, "");
  ASSERT_NE(plan, nullptr);
  EXPECT_EQ(plan->tier, plan::Tier::probe);
  EXPECT_GT(plan->estimate.us, 0);
}

TEST(ThreadRanks, NameTheOneThatFailedFirst) {
  EXPECT_TRUE(run_thread_ranks(3, [](Bootstrap&) { return base::Status(); }).ok());
  const base::Status status = run_thread_ranks(3, [](Bootstrap& bootstrap) -> base::Status {
    if (bootstrap.rank() == 1) throw_error(Errc::io, "no disk");
    return base::error(Errc::peer_lost, "rank 1 has left");
  });
  EXPECT_EQ(status.code(), Errc::io);
  EXPECT_EQ(status.message(), "rank 1: no disk");
}

}  // namespace
}  // namespace overlace::cli
