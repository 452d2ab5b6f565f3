#include "src/plan/recurrence.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "src/spec/costs.h"
#include "src/spec/expand.h"
#include "tests/unit/plan/problem.h"
#include "tests/unit/spec/operators.h"

namespace overlace::plan {
namespace {

using spec::Machine;
using spec::OpSpec;

/// Products at 1 TFLOP/s and copies at 1 GB/s, nothing else: times can be worked out by hand.
Machine plain() {
  Machine out;
  out.ranks = 4;
  out.gemm.tiles = {{1, 1, {0}, {0}}};
  out.gemm.sustained_TFLOPs = {1};
  out.copy.peer_GBps = out.copy.all_GBps = out.copy.local_GBps = {1};
  out.link.egress_GBps = {1};
  out.memory.reduce_GBps = {1e6};
  out.collectives.all_gather_us = out.collectives.reduce_scatter_us = out.collectives.all_reduce_us =
      out.collectives.all_to_all_us = {{{1, 5}, {2, 5}}};
  return out;
}

double us(const OpSpec& op, const Machine& machine, const char* family, int q) {
  return Recurrence(op, machine).us({family, q}).value();
}

TEST(Recurrence, GatherFollowsTheClosedForms) {
  const Machine machine = plain();
  // GEMM 2 * 1000 * 500 * 1000 / 1e6 = 1000 us; a shard of 250 x 1000 bf16 is 500 us on the link, three of them 1500.
  const OpSpec op = op_of("ag_gemm", 1000, 500, 1000, 4);
  EXPECT_DOUBLE_EQ(us(op, machine, "library", 1), 1005);
  EXPECT_DOUBLE_EQ(us(op, machine, "serial", 1), 2500);
  // The last shard is there at 1500, and is computed in 250.
  EXPECT_DOUBLE_EQ(us(op, machine, "shard_p2p", 1), 1750);
  EXPECT_DOUBLE_EQ(us(op, machine, "hetero_unfused_1d", 1), 1750);
  // Chunks of all three: the last at 1500, 750 / 5 to compute.
  EXPECT_DOUBLE_EQ(us(op, machine, "hetero_fused_1d", 5), 1650);
  EXPECT_DOUBLE_EQ(us(op, machine, "uniform_fused_1d", 5), 1700);
  // A fast link: what is left is the first transfer's wait, hidden by the own shard, and the GEMM.
  Machine fast = machine;
  fast.copy.all_GBps = {100};
  EXPECT_DOUBLE_EQ(us(op, fast, "hetero_unfused_1d", 1), 1000);
  EXPECT_DOUBLE_EQ(us(op, fast, "uniform_fused_1d", 5), 1000 + 3);
}

TEST(Recurrence, ScatterFollowsTheClosedForms) {
  const Machine machine = plain();
  // GEMM 1000 us, of which the shards of others 750; a shard of 250 x 500 bf16 is 250 us on the link.
  const OpSpec op = op_of("gemm_rs", 1000, 500, 1000, 4);
  EXPECT_NEAR(us(op, machine, "serial", 1), 1750, 2);
  // First partials at 250, then the link is busy until 1000; the own shard ends at 1000 too.
  EXPECT_NEAR(us(op, machine, "hetero_unfused_1d", 1), 1000, 2);
  Machine slow = machine;
  slow.copy.all_GBps = {0.5};
  EXPECT_NEAR(us(op, slow, "hetero_unfused_1d", 1), 250 + 1500, 3);
  EXPECT_NEAR(us(op, slow, "uniform_fused_1d", 5), 200 + 1500, 3);
  // gemm_ar: the sums leave when the last partials have come.
  const OpSpec ar = op_of("gemm_ar", 1000, 500, 1000, 4);
  const double reduce_scatter = us(op, machine, "hetero_unfused_1d", 1);
  EXPECT_NEAR(us(ar, machine, "hetero_unfused_1d", 1), reduce_scatter + 750 + 750, 5);  // all to peers, out of Z
  EXPECT_LT(us(ar, machine, "grouped_unfused_1d", 5), us(ar, machine, "hetero_unfused_1d", 1));
}

/// One behind each product of a shard or chunk, but for those whose last task converts sums; each costs a launch and
/// the host's time.
TEST(Recurrence, ActivationsAreTasksBehindTheProducts) {
  Machine machine = plain();
  OpSpec op = op_of("ag_gemm", 1000, 500, 1000, 4), gated = op;
  gated.activation = spec::Activation::swiglu;
  machine.latency.launch_us = {10};
  const auto tasks = [&](const Candidate& c) {
    const spec::Schedule schedule = spec::make_schedule(gated, c.family, c.degree);
    const spec::Expansion all = spec::expand(schedule, 0, 4).value();
    return std::count_if(all.instances.begin(), all.instances.end(), [&](const spec::Instance& in) {
      return schedule.tasks[static_cast<size_t>(in.task)].id.starts_with("swiglu");
    });
  };
  const auto check = [&](double each) {
    for (const Candidate& c : candidates(gated, machine)) {
      const double plain = us(op, machine, c.family.c_str(), c.degree);
      EXPECT_NEAR(us(gated, machine, c.family.c_str(), c.degree), plain + each * static_cast<double>(tasks(c)), 0.01)
          << to_string(c);
    }
  };
  EXPECT_EQ(tasks({"hetero_unfused_1d", 2}), 7);
  check(10);
  machine.latency.host_kernel_us = {5000};
  check(5000);
}

/// The sum is over the rows that travel: part by part it grows in fp32, slab by slab of C it does not.
TEST(Recurrence, GradientsOfWeightsFollowTheClosedForms) {
  Machine machine = plain();
  const OpSpec op = op_of("ag_wgrad", 1000, 500, 1000, 4);  // GEMM and shards as those of ag_gemm above
  EXPECT_DOUBLE_EQ(us(op, machine, "library", 1), 1005);
  EXPECT_DOUBLE_EQ(us(op, machine, "serial", 1), 2500);
  EXPECT_NEAR(us(op, machine, "hetero_unfused_1d", 1), 1750, 0.1);
  EXPECT_DOUBLE_EQ(us(op, machine, "uniform_fused_2d", 5), 1700);
  EXPECT_FALSE(Recurrence(op, machine).us({"hetero_fused_1d", 1}).has_value());
  // Adding to 1000 x 500 fp32 at 1 GB/s: 4000 us for each of three parts, and 3000 to make bf16 of them.
  machine.memory.reduce_GBps = {1};
  machine.copy.all_GBps = {1e6};
  EXPECT_NEAR(us(op, machine, "hetero_unfused_1d", 1), 1000 + 3 * 4000 + 3000, 0.1);
  EXPECT_NEAR(us(op, machine, "uniform_fused_2d", 5), 1000, 0.1);
  OpSpec wide = op;
  wide.out_dtype = DType::fp32;
  EXPECT_NEAR(us(wide, machine, "hetero_unfused_1d", 1), 1000 + 3 * 4000, 0.1);
}

TEST(Recurrence, LossesSlowItDownAndAddUp) {
  for (const std::string& name : test::all_operators()) {
    const OpSpec op = op_of(name, 1024, 512, 1024, 4);
    const Machine machine = plain();
    Machine lossy = machine;
    lossy.latency.launch_us = {3};
    lossy.latency.call_us = {7};
    lossy.latency.flag_us = {1};
    lossy.copy.start_us = {5};
    lossy.copy.post_us = {2};
    lossy.copy.trigger_us = {4};
    lossy.latency.host_copy_us = {30};
    lossy.contention = {{spec::Load::gemm_tensor, spec::Load::ce_in, {1.2}},
                        {spec::Load::ce_out, spec::Load::gemm_tensor, {1.1}}};
    for (const Candidate& candidate : candidates(op, lossy)) {
      const std::string what = std::string(name) + " " + to_string(candidate);
      const Recurrence model(op, lossy);
      ASSERT_TRUE(model.us(candidate).has_value()) << what;
      EXPECT_GT(*model.us(candidate), Recurrence(op, machine).us(candidate).value()) << what;
      const spec::Waterfall parts = model.waterfall(candidate);
      const double sum =
          std::accumulate(parts.begin(), parts.end(), 0.0, [](double t, const auto& p) { return t + p.second; });
      EXPECT_NEAR(sum, *model.us(candidate), 1e-9 * sum) << what;
      EXPECT_EQ(parts.front().first, "ideal");
      EXPECT_GT(parts.front().second, 0) << what;
    }
  }
}

/// Whoever forks and joins other streams pays for it once a call, whatever the number of copies.
TEST(Recurrence, LanesCostTheHostOnceACall) {
  Machine machine = spec::find_machine("h200x4");
  const OpSpec op = op_of("gemm_rs", 512, 1024, 512, 2);
  machine.latency.host_call_us = {1000};
  const auto more = [&](const char* family, int degree) {
    Machine with = machine;
    with.latency.host_lanes_us = {500};
    return us(op, with, family, degree) - us(op, machine, family, degree);
  };
  EXPECT_NEAR(more("hetero_unfused_1d", 1), 500, 1e-9);
  EXPECT_NEAR(more("hetero_unfused_1d", 2), 500, 1e-9);
  EXPECT_EQ(more("tma_slot", 64), 0);
  EXPECT_EQ(more("library", 1), 0);
}

TEST(Recurrence, SaysNothingOfWhatItDoesNotKnow) {
  const Machine machine = plain();
  const OpSpec op = op_of("ag_gemm", 16, 512, 1024, 4);
  const Recurrence model(op, machine);
  EXPECT_FALSE(model.us({"no_such_family", 1}).has_value());
  EXPECT_FALSE(model.us({"hetero_fused_1d", 5}).has_value()) << "a shard of 4 rows has no 5 chunks";
  EXPECT_FALSE(model.us({"hetero_fused_1d", 0}).has_value());
  EXPECT_FALSE(model.us({"k_slab", 4}).has_value()) << "a machine without transports";
  EXPECT_FALSE(model.us({"tma_slot", 4}).has_value()) << "not of ag_gemm";
  EXPECT_TRUE(model.waterfall({"k_slab", 4}).empty());
  Machine mute = machine;
  mute.collectives = {};
  EXPECT_FALSE(Recurrence(op, mute).us({"library", 1}).has_value()) << "no times of all_gather";
  EXPECT_TRUE(Recurrence(op, mute).waterfall({"library", 1}).empty());
  mute.transport.store_GBps = {{{1, 10}, {2, 10}}};
  EXPECT_FALSE(Recurrence(op_of("gemm_rs", 64, 512, 1024, 4), mute).us({"tma_slot", 64}).has_value());
}

/// Four SMs, so two clusters; a cluster's tile of 256 x 256 takes 1000 us.
Machine two_clusters() {
  Machine machine = plain();
  machine.is_gpu = true;
  machine.sms = 4;
  machine.gemm.tiles = {{128, 256, {0}, {1000}}};
  machine.gemm.sustained_TFLOPs = {0};
  machine.transport.store_GBps = machine.transport.tma_GBps = {{{1, 10}, {2, 10}}};
  return machine;
}

TEST(Recurrence, SlabsComeFromAllPeersBeforeTheRowsBehindThem) {
  Machine machine = two_clusters();
  // 1024 x 256: four tiles of clusters, two waves of 1000 us, half a wave of them my rows; three shards of 256 x 1000
  // bf16 at 10 GB/s are 153.6 us, there before my rows are done.
  const OpSpec op = op_of("ag_gemm", 1024, 256, 1000, 4);
  EXPECT_NEAR(us(op, machine, "k_slab", 4), 2000, 0.1);
  // 1536 us: the wave that waits for them ends a quarter behind the last, and half a wave is left.
  machine.transport.store_GBps = {{{1, 1}, {2, 1}}};
  EXPECT_NEAR(us(op, machine, "k_slab", 4), 1536 + 1000.0 / 4 + 500, 0.1);
  // Pushes slow what is multiplied beside them: all of the 153.6 us, twice as long.
  machine = two_clusters();
  machine.contention = {{spec::Load::gemm_tensor, spec::Load::sm_copy, {2}}};
  EXPECT_NEAR(us(op, machine, "k_slab", 4), 2000 + 153.6, 0.1);
}

TEST(Recurrence, ShardsOfOneKernelAreWholeTiles) {
  const Machine machine = two_clusters();
  // 384 rows are two tiles of 256 as 512 are: eight tiles, four waves.
  EXPECT_NEAR(us(op_of("ag_gemm", 1536, 256, 1000, 4), machine, "k_slab", 4), 4000, 0.1);
  EXPECT_NEAR(us(op_of("ag_gemm", 2048, 256, 1000, 4), machine, "k_slab", 4), 4000, 0.1);
}

TEST(Recurrence, StoresOfAWaveAreNotHidden) {
  // 1024 x 256: eight tiles of 256 x 128 in four waves of 500 us; 39.3 us of stores, of which a quarter is behind the
  // products.
  const OpSpec rs = op_of("gemm_rs", 1024, 256, 1000, 4);
  EXPECT_NEAR(us(rs, two_clusters(), "tma_slot", 64), 2000 + 39.3 / 4, 1);
}

/// Products as above, in four waves, of which the last is that of my rows; three shards of 256 x 256 bf16 are whole
/// chunks, as a shard is one row of tiles.
TEST(Recurrence, CopiesThatAKernelTriggersHideBehindItsOwnTiles) {
  Machine machine = two_clusters();
  machine.copy = {};
  machine.copy.peer_GBps = machine.copy.all_GBps = {10};
  machine.memory.reduce_us = {};
  machine.memory.reduce_GBps = {1e9};
  const OpSpec rs = op_of("gemm_rs", 1024, 256, 1000, 4);
  const double copy = 256 * 256 * 2 / 1e4;
  EXPECT_NEAR(us(rs, machine, "tracked", 1), 2000, 0.1);
  EXPECT_NEAR(us(rs, machine, "tracked", 4), us(rs, machine, "tracked", 1), 1e-9) << "one row of tiles is not cut";
  machine.copy.trigger_us = {600};
  EXPECT_NEAR(us(rs, machine, "tracked", 1), 1500 + 600 + copy, 0.1) << "a trigger behind the third wave";
  machine.copy.trigger_us = {};
  machine.copy.peer_GBps = machine.copy.all_GBps = {0.1};  // 1310.7 us each, the first behind the first wave
  EXPECT_NEAR(us(rs, machine, "tracked", 1), 500 + 3 * 1310.72, 0.1);
  // Two ranks, four rows of tiles in a shard: 16 tiles in eight waves. Two copies of 512 x 256 take 2621 us each.
  const OpSpec two = op_of("gemm_rs", 2048, 256, 1000, 2);
  EXPECT_NEAR(us(two, machine, "tracked", 1), 2000 + 2 * 2621.44, 0.1);
  EXPECT_NEAR(us(two, machine, "tracked", 2), 1000 + 2 * 2621.44, 0.1);
}

TEST(Recurrence, OfAllReduceInOneKernelTheLastBandIsNotHidden) {
  // Products as above; a rank stores 39.3 us of partials and as much of sums. Four row tiles of a shard make no more
  // than four bands.
  Machine machine = two_clusters();
  const OpSpec ar = op_of("gemm_ar", 1024, 256, 1000, 4), high = op_of("gemm_ar", 4096, 256, 1000, 4);
  EXPECT_NEAR(us(ar, machine, "tma_slot", 8), 2000 + 39.3, 1);
  EXPECT_NEAR(us(high, machine, "tma_slot", 2), 8000 + 4 * 39.3 / 2, 1);
  EXPECT_NEAR(us(high, machine, "tma_slot", 8), 8000 + 4 * 39.3 / 4, 1);
  machine.contention = {{spec::Load::gemm_tensor, spec::Load::epi_store, {2}}};
  EXPECT_NEAR(us(ar, machine, "tma_slot", 8), 2000 + 2 * 39.3 + 39.3, 1) << "both passes slow the products";
  machine = two_clusters();
  machine.transport.tma_GBps = {{{1, 0.1}, {2, 0.1}}};
  EXPECT_NEAR(us(ar, machine, "tma_slot", 8), 2000 / 4.0 + 2 * 3932, 10) << "links carry all from the first wave on";
  machine = two_clusters();
  machine.latency.flag_us = {10};
  EXPECT_NEAR(us(ar, machine, "tma_slot", 8), 2000 + 39.3 + 3 * 10, 1) << "partials, sums, the end";
}

/// Two H200, bench/results/gemm_ar_slot_x2.jsonl: N 8192, tiles by slot_tile_cols.
TEST(Recurrence, AllReduceInOneKernelTakesWhatWasMeasured) {
  struct Row {
    int64_t m, k;
    double four, eight;  // bands, us
  };
  const Machine machine = spec::find_machine("h200x4");
  for (const Row& row : {Row{1024, 2048, 97.5, 97.7}, Row{2048, 2048, 165.5, 166.9}, Row{4096, 2048, 297.2, 303.8},
                         Row{8192, 2048, 569.8, 562.7}, Row{16384, 2048, 1150.1, 1111.6}, Row{1024, 7168, 234.9, 235.7},
                         Row{2048, 7168, 438.4, 442.8}, Row{4096, 7168, 821.3, 850.0}, Row{8192, 7168, 1645.7, 1672.8},
                         Row{16384, 7168, 3259.7, 3255.9}}) {
    const OpSpec op = op_of("gemm_ar", row.m, 8192, row.k, 2);
    EXPECT_NEAR(us(op, machine, "tma_slot", 4) / row.four, 1, 0.07) << row.m << " " << row.k;
    EXPECT_NEAR(us(op, machine, "tma_slot", 8) / row.eight, 1, 0.07) << row.m << " " << row.k;
  }
}

/// Shards that tiles of 224 columns would fill three waves with: the library takes others. unseen_x4.jsonl: four
/// products in 594.7 us.
TEST(Recurrence, ProductsOfShardsTakeTilesOfTheLibrary) {
  const double found = us(op_of("ag_gemm", 6144, 7168, 4096, 4), spec::find_machine("h200x4"), "hetero_unfused_1d", 1);
  EXPECT_NEAR(found / 594.7, 1, 0.05);
}

/// Two H200, bench/results/decode_x2.jsonl, calls in a graph: one kernel, and the library.
TEST(Recurrence, FewTokensTakeWhatWasMeasured) {
  struct Row {
    const char* op;
    int64_t m, n, k;
    double one_shot_us, library_us;
  };
  const Row rows[] = {
      {"ag_gemm", 1, 2560, 8192, 22.8, 23.7},  {"ag_gemm", 64, 2560, 8192, 25.1, 29.2},
      {"ag_gemm", 1, 4608, 16384, 67.2, 51.0}, {"ag_gemm", 64, 4608, 16384, 71.3, 65.2},
      {"ag_gemm", 1, 7168, 4096, 23.1, 30.2},  {"ag_gemm", 64, 7168, 4096, 24.2, 28.4},
      {"ag_gemm", 1, 14336, 8192, 70.2, 70.1}, {"ag_gemm", 64, 14336, 8192, 73.4, 75.2},
      {"gemm_rs", 1, 8192, 2048, 12.5, 20.2},  {"gemm_rs", 64, 8192, 2048, 14.3, 23.1},
      {"gemm_rs", 1, 16384, 4096, 37.5, 43.9}, {"gemm_rs", 64, 16384, 4096, 38.8, 52.4},
      {"gemm_ar", 1, 8192, 7168, 33.4, 39.2},  {"gemm_ar", 64, 8192, 7168, 35.0, 48.8},
      {"gemm_ar", 1, 16384, 4096, 37.6, 42.5}, {"gemm_ar", 64, 16384, 4096, 40.0, 68.0},
      {"gemm_ar", 1, 5120, 3456, 14.7, 20.1},  {"gemm_ar", 64, 5120, 3456, 17.8, 24.9},
  };
  const Machine machine = spec::find_machine("h200x2_calibrated");
  for (const Row& row : rows) {
    const OpSpec op = op_of(row.op, row.m, row.n, row.k, 2);
    EXPECT_NEAR(us(op, machine, "one_shot", 1) / row.one_shot_us, 1, 0.07) << op.to_string();
    EXPECT_NEAR(us(op, machine, "library", 1) / row.library_us, 1, 0.2) << op.to_string();
  }
}

/// Each rank sends its sums to all others: two ranks more send two times more.
TEST(Recurrence, FewTokensOfMorePeersAreSentToEach) {
  const Machine machine = spec::find_machine("h200x2_calibrated");
  const auto us_of = [&](const char* name, int ranks) {
    return us(op_of(name, 64, 8192, 2048, ranks), machine, "one_shot", 1);
  };
  const double megabyte = 64 * 8192 * 2 / machine.transport.store_GBps.at(132) * 1e-3;
  EXPECT_NEAR(us_of("gemm_ar", 4) - us_of("gemm_ar", 2), 2 * megabyte, 1e-6);
  EXPECT_NEAR(us_of("gemm_rs", 4) - us_of("gemm_rs", 2), (3.0 / 4 - 1.0 / 2) * megabyte, 1e-6);
}

/// A tile has 256 tokens from 129 on, whose products take longer than the weights: more of them are more to send alone.
TEST(Recurrence, TokensOfAWholeTileAreMultiplied) {
  const Machine machine = spec::find_machine("h200x2_calibrated");
  const auto us_of = [&](int64_t m) { return us(op_of("gemm_ar", m, 8192, 2048, 2), machine, "one_shot", 1); };
  const double token = 8192 * 2 / machine.transport.store_GBps.at(132) * 1e-3;
  EXPECT_NEAR(us_of(256) - us_of(129), 127 * token, 1e-6);
  EXPECT_NEAR(us_of(128) - us_of(1), 127 * token, 1e-6) << "weights take longer";
  EXPECT_NEAR(us_of(129) - us_of(128) - token, spec::tile_us(machine, 64, 256, 2048) - 8192 * 2048 * 2 / 4083e3, 1e-2);
}

/// All SMs of the machine push, at the rate that its file says for so many.
TEST(Recurrence, FewTokensArePushedByAllSms) {
  Machine machine = spec::find_machine("h200x2_calibrated");
  const auto us_of = [&](int ranks) { return us(op_of("ag_gemm", 64, 2560, 8192, ranks), machine, "one_shot", 1); };
  for (const int sms : {132, 4}) {
    machine.sms = sms;
    const double rows = 3 * 16 - 32;  // that each rank sends more on four ranks than on two
    EXPECT_NEAR(us_of(4) - us_of(2), rows * 8192 * 2 / machine.transport.store_GBps.at(sms) * 1e-3, 1e-6) << sms;
  }
}

/// Where the links are slower than the GEMM groups slow each other down; how much is too much the machine says.
TEST(Recurrence, GroupsAreEstimatedWhereTheMachineSaysSo) {
  Machine machine = spec::find_machine("h200x4");
  const OpSpec op = op_of("gemm_ar", 16384, 8192, 2048, 4);
  const auto is_known = [&] { return Recurrence(op, machine).us({"grouped_unfused_1d", 4}).has_value(); };
  EXPECT_FALSE(is_known());
  machine.copy.most_grouped = {10};
  EXPECT_TRUE(is_known());
}

TEST(Recurrence, ChunksDoNotKeepInStep) {
  // Nothing but copies of 500 us: those of whole shards are as measured alone, those of chunks take longer.
  Machine machine = plain();
  machine.is_gpu = true;
  machine.gemm.sustained_TFLOPs = {1e6};
  const OpSpec op = op_of("ag_gemm", 1000, 500, 1000, 4);
  EXPECT_NEAR(us(op, machine, "hetero_unfused_1d", 2), 1500, 0.1);  // the machine says nothing of it
  machine.copy.out_of_step = {1.1};
  EXPECT_NEAR(us(op, machine, "hetero_unfused_1d", 1), 1500, 0.1);
  EXPECT_NEAR(us(op, machine, "hetero_unfused_1d", 2), 1650, 0.1);
}

}  // namespace
}  // namespace overlace::plan
