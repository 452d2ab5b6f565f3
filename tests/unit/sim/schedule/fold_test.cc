// One rank that stands for all gives the times of all, and stands for them only where they are alike.
#include <gtest/gtest.h>

#include "overlace/sim.h"
#include "src/sim/schedule/graph.h"
#include "src/sim/schedule/simulation.h"
#include "src/spec/alike.h"
#include "tests/unit/sim/schedule/problem.h"
#include "tests/unit/spec/operators.h"

namespace overlace::sim {
namespace {

using spec::OpSpec;
using spec::Schedule;

bool is_folded(const Schedule& schedule, int ranks) { return spec::expand_alike(schedule, ranks).value().size() == 1; }

/// Rows that no team divides, rows that every team does, shards that are not alike.
std::vector<OpSpec> shapes(const std::string& name, int ranks) {
  std::vector<OpSpec> out = {op_of(name, ranks, 7680), op_of(name, ranks, 2051), op_of(name, ranks, 7680, 520, 4096)};
  out.push_back(op_of(name, ranks, 3840));
  out.back().row_offsets = {0};
  for (int r = 1; r < ranks; ++r) out.back().row_offsets.push_back(3840 / ranks * r - 64);
  out.back().row_offsets.push_back(3840);
  return out;
}

/// tma_slot has hundreds of flows: a picosecond decides which of two comes first.
void expect_equal(const Schedule& schedule, const spec::Machine& machine, const SimOptions& options) {
  const base::Result<SimResult> all = try_simulate(schedule, machine, options);
  const base::Result<SimResult> one = try_simulate_folded(schedule, machine, options);
  ASSERT_EQ(all.ok(), one.ok());
  if (!all.ok()) {
    EXPECT_EQ(all.status().message(), one.status().message());
    return;
  }
  ASSERT_EQ(all->call_ps.size(), one->call_ps.size());
  const double apart = schedule.family.starts_with("tma_slot") ? 1e-5 : 1e-9;
  for (size_t c = 0; c < all->call_ps.size(); ++c)
    EXPECT_NEAR(static_cast<double>(all->call_ps[c]), static_cast<double>(one->call_ps[c]),
                2 + apart * static_cast<double>(all->call_ps[c]));
  EXPECT_EQ(all->bytes, one->bytes);
  EXPECT_EQ(all->static_bytes, one->static_bytes);
  EXPECT_NEAR(all->host_us, one->host_us, 1e-9 * all->host_us);
  EXPECT_NEAR(all->bound_us, one->bound_us, 1e-9 * all->bound_us);
  EXPECT_NEAR(all->serial_us, one->serial_us, 1e-9 * all->serial_us);
  EXPECT_NEAR(all->contention_us, one->contention_us, 1e-5 + apart * all->contention_us);
}

class Folding : public testing::TestWithParam<std::string> {};

TEST_P(Folding, GivesTheTimesOfAllRanks) {
  int folded = 0, not_folded = 0;
  for (const char* machine_name : {"h200x4", "h200x2", "cpu2"}) {
    const spec::Machine machine = spec::find_machine(machine_name);
    for (const std::string& family : spec::families(GetParam())) {
      for (const int ranks : {2, 3, 4, 5, 8}) {
        if (ranks > 4 && !machine.is_gpu) continue;  // takes long, and no lane is different
        for (const OpSpec& op : shapes(GetParam(), ranks)) {
          for (const int degree : {1, 4}) {
            SCOPED_TRACE(op.to_string() + " " + family + " q " + std::to_string(degree) + " " + machine_name);
            Schedule schedule;
            try {
              schedule = build(op, family, degree);
            } catch (const std::exception&) {
              continue;  // a family that this shape cannot be cut for
            }
            ++(is_folded(schedule, ranks) ? folded : not_folded);
            expect_equal(schedule, machine, {});
            if (ranks < 4) expect_equal(schedule, machine, {.calls = 3, .has_contention = degree != 1});
          }
        }
      }
    }
  }
  EXPECT_GT(folded, 100);
  EXPECT_GT(not_folded, 100);
}

INSTANTIATE_TEST_SUITE_P(Operators, Folding, testing::ValuesIn(test::all_operators()));

TEST(Fold, EveryFamilyOfEqualShardsButProductsOfSeveralShards) {
  for (const std::string& name : test::all_operators()) {
    for (const std::string& family : spec::families(name)) {
      if (family == "hierarchical") continue;
      const Schedule schedule = build(op_of(name, 4, 8192), family, 4);
      // The shards of the others touch on some ranks and not on others: one product there, two here.
      // The analysis does not see that blocks lie alike on all ranks, so not whether those of a step touch.
      const bool reads_places = name == "a2a_gemm" && family == "uniform_fused_1d";
      EXPECT_EQ(is_folded(schedule, 4), family != "hetero_fused_1d" && !reads_places) << name << " " << family;
    }
  }
}

TEST(Fold, RefusesRanksThatDiffer) {
  EXPECT_FALSE(is_folded(build(op_of("ag_gemm", 4, 2051), "hetero_unfused_1d", 2), 4));
  OpSpec uneven = op_of("gemm_rs", 4, 4096);
  uneven.row_offsets = {0, 1024, 2048, 3008, 4096};
  EXPECT_FALSE(is_folded(build(uneven, "hetero_unfused_1d", 1), 4));
  EXPECT_FALSE(is_folded(build(uneven, "tma_slot", 16), 4));

  const Schedule good = build(op_of("ag_gemm", 4, 4096), "hetero_unfused_1d", 2);
  ASSERT_TRUE(is_folded(good, 4));
  const auto refused = [&](auto change) {
    Schedule changed = good;
    change(changed);
    return !is_folded(changed, 4);
  };
  EXPECT_TRUE(refused([](Schedule& s) { s.tasks[0].order = "s*G+p+r"; }));
  EXPECT_TRUE(refused([](Schedule& s) { s.tasks[0].queue = "(r+p)%2"; }));
  EXPECT_TRUE(refused([](Schedule& s) { s.tasks[0].loops[0].end = "min(q,r+1)"; }));
  EXPECT_TRUE(refused([](Schedule& s) { s.tasks[0].writes[0].at = "(2*r+p)%G"; }));
  EXPECT_TRUE(refused([](Schedule& s) { s.tasks[0].writes[0].at = "(p-1)%G"; }));
  EXPECT_TRUE(refused([](Schedule& s) { s.tasks[0].reads[0].dims[0].count = "1+r"; }));
  EXPECT_TRUE(refused([](Schedule& s) { s.tasks[0].sets[0].slot = "r%q"; }));
  EXPECT_TRUE(refused([](Schedule& s) { s.tasks.back().waits[0].at_least = "max(1,r-2)"; }));
  EXPECT_TRUE(refused([](Schedule& s) { s.tasks.back().waits[0].from = "(r*p)%G"; }));
  EXPECT_TRUE(refused([](Schedule& s) { s.tables.at("cut")[3] += 8; }));
}

TEST(Fold, IsLeftAloneByOptionsThatTellRanksApart) {
  const spec::Machine machine = spec::find_machine("h200x4");
  const Schedule schedule = build(op_of("ag_gemm", 4, 4096), "hetero_unfused_1d", 2);
  SimOptions late;
  late.start_us = {0, 50, 0, 0};
  SimOptions noisy;
  noisy.seed = 7;
  SimOptions spans;
  spans.has_spans = true;
  for (const SimOptions& options : {late, noisy, spans}) {
    const SimResult all = try_simulate(schedule, machine, options).value();
    const SimResult one = try_simulate_folded(schedule, machine, options).value();
    EXPECT_EQ(all.time_ps, one.time_ps);
    EXPECT_EQ(all.spans.size(), one.spans.size());
  }
}

}  // namespace
}  // namespace overlace::sim
