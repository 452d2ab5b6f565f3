#include "cli/plan/probe.h"

#include <gtest/gtest.h>

#include "cli/thread_ranks.h"
#include "overlace/error.h"

namespace overlace::cli {
namespace {

constexpr int kRanks = 2;

spec::OpSpec small(int ranks = kRanks) {
  spec::OpSpec op;
  op.op = "gemm_rs";
  op.m = 96;
  op.n = 64;
  op.k = 32;
  op.ranks = ranks;
  op.dtype = op.out_dtype = DType::fp32;
  return op;
}

RuntimeOptions cpu() {
  RuntimeOptions out;
  out.backend = Backend::cpu;
  out.heap_bytes = size_t{16} << 20;
  out.timeout_ms = 20000;
  return out;
}

constexpr size_t kOperand = 64 * 1024;

TEST(PlanProbe, AllRanksSeeTheSameTimesAndTheFirstOnesText) {
  std::vector<std::vector<spec::Estimate>> times(kRanks);
  std::vector<std::string> texts(kRanks);
  const base::Status status = run_thread_ranks(kRanks, [&](Bootstrap& bootstrap) {
    const auto rank = static_cast<size_t>(bootstrap.rank());
    Rig rig(bootstrap, cpu(), kOperand);
    RigProber prober(rig);
    EXPECT_EQ(prober.is_first(), rank == 0);
    texts[rank] = prober.from_first("rank " + std::to_string(rank)).value();
    times[rank] =
        prober.measure({spec::make_schedule(small(), "library"), spec::make_schedule(small(), "serial")}, small())
            .value();
    rig.close();
    return base::Status();
  });
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(texts, (std::vector<std::string>{"rank 0", "rank 0"}));
  ASSERT_EQ(times[0].size(), 2u);
  ASSERT_EQ(times[1].size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_GT(times[0][i].us, 0);
    EXPECT_LE(times[0][i].lo_us, times[0][i].us);
    EXPECT_GE(times[0][i].hi_us, times[0][i].us);
    EXPECT_EQ(times[0][i].us, times[1][i].us) << "to the bit";
    EXPECT_EQ(times[0][i].hi_us, times[1][i].hi_us);
  }
}

TEST(PlanProbe, WhatCannotRunFailsOnAllRanks) {
  std::vector<base::Status> results(kRanks);
  const base::Status status = run_thread_ranks(kRanks, [&](Bootstrap& bootstrap) {
    Rig rig(bootstrap, cpu(), kOperand);
    RigProber prober(rig);
    // An operand that was not reckoned with.
    spec::OpSpec large = small();
    large.m = 4096;
    results[static_cast<size_t>(bootstrap.rank())] =
        prober.measure({spec::make_schedule(large, "library")}, large).status();
    // Nothing moved: the ranks still work.
    const bool works = prober.measure({spec::make_schedule(small(), "serial")}, small()).ok();
    rig.close();
    return works ? base::Status() : base::error(Errc::internal, "the ranks are lost");
  });
  EXPECT_TRUE(status.ok()) << status.message();
  for (const base::Status& result : results) EXPECT_EQ(result.code(), Errc::internal) << result.message();
}

TEST(PlanProbe, WhatOneRankCannotRunFailsOnAllAndTheyGoOn) {
  std::vector<base::Status> results(kRanks);
  const base::Status status = run_thread_ranks(kRanks, [&](Bootstrap& bootstrap) {
    const auto rank = static_cast<size_t>(bootstrap.rank());
    Rig rig(bootstrap, cpu(), kOperand);
    const Competitor broken{"broken",
                            [&](int) { return rank == 1 ? base::Status(Errc::io, "no disk") : base::Status(); }};
    results[rank] = measure({broken}, rig, {}).status();
    const bool works = RigProber(rig).measure({spec::make_schedule(small(), "serial")}, small()).ok();
    rig.close();
    return works ? base::Status() : base::error(Errc::internal, "the ranks are lost");
  });
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(results[0].code(), Errc::peer_lost) << results[0].message();
  EXPECT_EQ(results[1].message(), "no disk");
}

TEST(PlanProbe, PlansOnAllRanks) {
  const spec::Machine machine = spec::find_machine("cpu2");
  const auto plan = plan_by_probe(small(), machine, {.limit = plan::Tier::probe}, "");
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
