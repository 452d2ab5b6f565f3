// The kernel of gemm_rs and gemm_ar that stores tiles to their owners: products woven, sums and copies between them.
#include <gtest/gtest.h>

#include <cmath>

#include "overlace/error.h"
#include "overlace/sim.h"
#include "src/sim/schedule/simulation.h"
#include "tests/unit/sim/schedule/problem.h"

namespace overlace::sim {
namespace {

using spec::Machine;
using spec::OpSpec;
using spec::Schedule;

/// Two clusters; a tile of 256 x 128 takes one 1000 us where K is 1000, moving bytes 1 GB/s, all else nothing.
Machine two_clusters() {
  Machine out;
  out.is_gpu = true;
  out.ranks = 2;
  out.sms = 4;
  out.gemm.tiles = {{128, 128, {0}, {1000}}};
  out.copy.peer_GBps = out.copy.all_GBps = {1};
  out.link.egress_GBps = out.link.ingress_GBps = {1e6};
  out.transport.tma_GBps = {{{1, 1e6}, {2, 1e6}}};
  out.memory.reduce_GBps = {1};
  out.memory.hbm_GBps = {1e6};
  return out;
}

double us(const OpSpec& op, const Machine& machine, int degree) {
  return try_simulate_folded(build(op, "tma_slot", degree), machine).value().us();
}

/// 1024 x 256 on two ranks: eight tiles are four waves; the sums of the four own ones read two parts and write one.
TEST(ScatterKernel, SumsComeBehindTheProducts) {
  const OpSpec op = op_of("gemm_rs", 2, 1024, 256, 1000);
  const double tile_us = 256 * 128 * 2 * 1e-3;
  EXPECT_NEAR(us(op, two_clusters(), 64), 4000 + 4 * 3 * tile_us, 2);
  Machine free = two_clusters();
  free.memory.reduce_GBps = {1e6};
  EXPECT_NEAR(us(op, free, 64), 4000, 2);
  // A cluster alone does not draw what all of them together do.
  free.gemm.sm_stream_GBps = {0.25};
  EXPECT_NEAR(us(op, free, 64), 4000 + 2 * 3 * tile_us / 0.5, 2);
}

/// Own tiles are multiplied among those of the others, so the link carries from the first wave to the last.
TEST(ScatterKernel, StoresHideBehindTheProductsOfOwnTiles) {
  Machine machine = two_clusters();
  machine.memory.reduce_GBps = {1e6};
  const OpSpec op = op_of("gemm_rs", 2, 1024, 256, 1000);
  const double tile_us = 256 * 128 * 2 * 1e-3;  // at 1 GB/s
  machine.transport.tma_GBps = {{{1, 1}, {2, 1}, {4, 1}}};
  machine.link.egress_GBps = machine.link.ingress_GBps = {1};
  EXPECT_LT(us(op, machine, 64), 4000 + 2 * tile_us + 5) << "of the last wave only";
  // Links that take longer than the products: from the first tile of the others on they never rest.
  const OpSpec busy = op_of("gemm_rs", 2, 4096, 1024, 10);
  const double products_us = 16 * 8 / 2 * 10, stores_us = 8 * 8 * tile_us;
  EXPECT_GT(us(busy, machine, 64), stores_us);
  EXPECT_LT(us(busy, machine, 64), stores_us + products_us / 2);
}

/// What sums travel hides behind products of later bands; that of the last ones does not.
TEST(ScatterKernel, OfSumsTheLastBandsAreNotHidden) {
  Machine machine = two_clusters();
  machine.memory.reduce_GBps = {1e6};
  const OpSpec op = op_of("gemm_ar", 2, 4096, 256, 1000);
  const double products_us = 32 / 2 * 1000, tile_us = 256 * 128 * 2 * 1e-3;
  EXPECT_NEAR(us(op, machine, 1), products_us, 5);
  machine.transport.tma_GBps = {{{1, 1}, {2, 1}, {4, 1}}};
  machine.link.egress_GBps = machine.link.ingress_GBps = {1};
  EXPECT_NEAR(us(op, machine, 1), products_us + 16 * tile_us, 1.1 * tile_us) << "all of it";
  // A band is two tiles; with so few per cluster its sums come almost two bands behind its products.
  EXPECT_GT(us(op, machine, 8), products_us + 2 * tile_us - 5);
  EXPECT_LT(us(op, machine, 8), products_us + 3 * 2 * tile_us + 5);
  machine.latency.flag_us = {700};
  EXPECT_NEAR(us(op, machine, 8), products_us + 4 * tile_us + 2 * 700, 1.1 * tile_us) << "partials, then sums";
}

/// They are work of the clusters that multiply. In one band all do them at the same time and share the memory's rate.
TEST(ScatterKernel, SumsAndCopiesTakeTimeOfTheProducts) {
  const OpSpec op = op_of("gemm_ar", 2, 4096, 256, 1000);
  const double products_us = 32 / 2 * 1000, moved_us = 16 * (3 + 2) * 256 * 128 * 2 * 1e-3;
  EXPECT_NEAR(us(op, two_clusters(), 1), products_us + moved_us, 5);
  for (const int bands : {4, 8}) {
    EXPECT_GT(us(op, two_clusters(), bands), products_us + moved_us / 2 - 5);
    EXPECT_LT(us(op, two_clusters(), bands), products_us + moved_us + 5);
  }
}

/// Two H200, bench/results/gemm_ar_slot_x2.jsonl and fused_x2_woven.json, tiles by slot_tile_cols.
TEST(ScatterKernel, TakesWhatWasMeasured) {
  struct Row {
    const char* op;
    int64_t m, n, k;
    int degree;
    double us;
  };
  const Machine machine = spec::find_machine("h200x4");
  for (const Row& row : {Row{"gemm_ar", 1024, 8192, 2048, 4, 97.5}, Row{"gemm_ar", 1024, 8192, 2048, 8, 97.7},
                         Row{"gemm_ar", 4096, 8192, 2048, 4, 297.2}, Row{"gemm_ar", 4096, 8192, 2048, 8, 303.8},
                         Row{"gemm_ar", 16384, 8192, 2048, 4, 1150.1}, Row{"gemm_ar", 16384, 8192, 2048, 8, 1111.6},
                         Row{"gemm_ar", 1024, 8192, 7168, 4, 234.9}, Row{"gemm_ar", 4096, 8192, 7168, 4, 821.3},
                         Row{"gemm_ar", 16384, 8192, 7168, 4, 3259.7}, Row{"gemm_rs", 1024, 8192, 2048, 64, 78.5},
                         Row{"gemm_rs", 2048, 8192, 2048, 64, 140.6}, Row{"gemm_rs", 4096, 8192, 2048, 64, 255.3},
                         Row{"gemm_rs", 8192, 8192, 2048, 64, 500.5}}) {
    const OpSpec op = op_of(row.op, 2, row.m, row.n, row.k);
    const Schedule schedule = spec::make_schedule(op, "tma_slot", row.degree);
    const double us = try_simulate_folded(schedule, machine, {.calls = 4}).value().us();
    EXPECT_NEAR(us / row.us, 1, 0.08) << op.to_string() << " " << row.degree;
  }
}

/// 1024 x 256 on two ranks: two waves of tiles for the peer, two of own ones. A copy of 512 x 256 takes 262 us at 1
/// GB/s.
TEST(TrackedKernel, ACopyStartsATriggerBehindItsTiles) {
  const OpSpec op = op_of("gemm_rs", 2, 1024, 256, 1000);
  const auto tracked_us = [&](const Machine& machine, int degree) {
    return try_simulate_folded(spec::make_schedule(op, "tracked", degree), machine).value().us();
  };
  const double copy_us = 512 * 256 * 2 * 1e-3;
  Machine machine = two_clusters();
  EXPECT_NEAR(tracked_us(machine, 1), 4000 + 3 * copy_us, 2) << "the copy hides, the sum does not";
  machine.memory.reduce_GBps = {1e6};
  EXPECT_NEAR(tracked_us(machine, 1), 4000, 2);
  machine.copy.trigger_us = {3000};
  EXPECT_NEAR(tracked_us(machine, 1), 2000 + 3000 + copy_us, 2);
  EXPECT_NEAR(tracked_us(machine, 2), 2000 + 3000 + copy_us / 2, 2) << "the first chunk has left when the second does";
  machine.copy.trigger_us = {100};
  machine.copy.peer_GBps = machine.copy.all_GBps = {0.05};
  EXPECT_NEAR(tracked_us(machine, 1), 2000 + 100 + 20 * copy_us, 2);
  EXPECT_NEAR(tracked_us(machine, 2), 1000 + 100 + 20 * copy_us, 2) << "half of the rows leave a wave before";
}

void expect_refused(const Schedule& schedule, const char* why) {
  try {
    (void)simulate(schedule, spec::find_machine("h200x4"));
    FAIL() << "it ended, wanted: " << why;
  } catch (const ScheduleError& e) {
    EXPECT_NE(std::string(e.what()).find(why), std::string::npos) << e.what();
  }
}

TEST(ScatterKernel, RefusesWhatNoKernelDoes) {
  const auto with = [](const char* op, const char* family, const char* id, auto change) {
    Schedule out = build(op_of(op, 2), family, 4);
    for (spec::Task& task : out.tasks)
      if (task.id == id) change(&task);
    return out;
  };
  expect_refused(with("gemm_ar", "tma_slot", "copy_out", [](spec::Task* t) { t->loops[0].end = 1; }),
                 "no part computes or carries row");
  expect_refused(with("gemm_ar", "tma_slot", "broadcast", [](spec::Task* t) { t->writes[0].at = spec::Expr("r"); }),
                 "own sums carried to peers");
  expect_refused(with("gemm_ar", "tma_slot", "broadcast", [](spec::Task* t) { t->writes.push_back(t->writes[0]); }),
                 "a part that copies 1 regions to 2; wanted: one box of rows and columns each");
}

}  // namespace
}  // namespace overlace::sim
