#include "src/study/t3/t3.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "src/study/t3/tracker.h"
#include "src/study/t3/waves.h"

namespace overlace::study::t3 {
namespace {

constexpr Config kConfigs[] = {Config::sequential,   Config::cu_split_8, Config::cu_split_16, Config::ideal_overlap,
                               Config::ideal_rs_nmc, Config::t3,         Config::t3_mca};

double total_us(const SubLayer& layer, Config config, const Options& options = {}) {
  return simulate(layer, config, Machine{}, options).value().total_us;
}

TEST(T3Tracker, CountsUpdatesUntilTheThreshold) {
  Tracker tracker({4, 2});
  EXPECT_EQ(tracker.update(5, 0, 3), Tracker::Outcome::counted);
  EXPECT_EQ(tracker.update(5, 0, 3), Tracker::Outcome::counted);
  EXPECT_EQ(tracker.update(5, 1, 3), Tracker::Outcome::counted);  // another wavefront: another entry
  EXPECT_EQ(tracker.entries(), 2);
  EXPECT_EQ(tracker.update(5, 0, 3), Tracker::Outcome::ready);
  EXPECT_EQ(tracker.entries(), 1);
  EXPECT_EQ(tracker.peak_entries(), 2);
  EXPECT_EQ(tracker.update(6, 0, 1), Tracker::Outcome::ready);  // direct reduce-scatter: one update, no entry
}

TEST(T3Tracker, ASetHasAsManyWays) {
  Tracker tracker({4, 2});
  EXPECT_EQ(tracker.update(1, 0, 2), Tracker::Outcome::counted);
  EXPECT_EQ(tracker.update(5, 0, 2), Tracker::Outcome::counted);  // 1 and 5 share set 1, their tags differ
  EXPECT_EQ(tracker.update(9, 0, 2), Tracker::Outcome::full);
  EXPECT_EQ(tracker.update(2, 0, 2), Tracker::Outcome::counted);  // another set has room
  EXPECT_EQ(tracker.update(5, 0, 2), Tracker::Outcome::ready);
  EXPECT_EQ(tracker.update(9, 0, 2), Tracker::Outcome::counted);
}

TEST(T3Traffic, ClosedFormsOfThePaper) {
  for (const SubLayer& layer : main_sub_layers()) {
    const double s = layer.output_bytes(), t = layer.ranks;
    const Traffic unfused = unfused_traffic(layer, Machine{}), fused = fused_traffic(layer, Machine{}, Options{});
    EXPECT_DOUBLE_EQ(unfused.rs_rd / fused.rs_rd, (2 * t - 1) / (t - 2));
    EXPECT_DOUBLE_EQ(unfused.gemm_wr + unfused.rs_wr, 2 * s);
    EXPECT_DOUBLE_EQ((fused.gemm_wr + fused.rs_wr) / s, (2 * t - 2) / t);
    EXPECT_LE(fused.gemm_rd, unfused.gemm_rd);  // output that bypasses the cache leaves room for operands
    EXPECT_GE(fused.gemm_rd, 2.0 * static_cast<double>((layer.m + layer.n) * layer.k) * 0.999);
  }
}

TEST(T3Simulation, MemoryServesTheClosedFormBytes) {
  const SubLayer layer = main_sub_layers()[1];
  const Traffic want = fused_traffic(layer, Machine{}, Options{});
  for (const Config config : {Config::t3, Config::t3_mca}) {
    const Traffic got = simulate(layer, config, Machine{}, Options{})->bytes;
    EXPECT_NEAR(got.gemm_rd / want.gemm_rd, 1, 1e-6);
    EXPECT_NEAR(got.gemm_wr / want.gemm_wr, 1, 1e-6);
    EXPECT_NEAR(got.rs_rd / want.rs_rd, 1, 1e-6);
    EXPECT_NEAR(got.rs_wr / want.rs_wr, 1, 1e-6);
  }
}

TEST(T3Simulation, OverflowLosesNothingEvenWithOneEntry) {
  const SubLayer layer = main_sub_layers()[0];
  Options options;
  options.tracker = {1, 1};
  const Result small = simulate(layer, Config::t3, Machine{}, options).value();
  EXPECT_GT(small.tracker_overflows, 0);
  EXPECT_LE(small.tracker_peak, 1);
  EXPECT_NEAR(small.bytes.rs_rd / fused_traffic(layer, Machine{}, options).rs_rd, 1, 1e-6);
  options.tracker = {1 << 20, 8};
  const Result large = simulate(layer, Config::t3, Machine{}, options).value();
  EXPECT_EQ(large.tracker_overflows, 0);
  EXPECT_GE(small.total_us, large.total_us);
}

TEST(T3Simulation, NothingBeatsTheIdealOrTheLink) {
  for (const SubLayer& layer : main_sub_layers()) {
    const double ideal = total_us(layer, Config::ideal_rs_nmc), serial = total_us(layer, Config::sequential);
    const double link_us = (layer.ranks - 1.0) / layer.ranks * layer.output_bytes() / (Machine{}.link_GBps * 1e3);
    EXPECT_LE(ideal, serial);
    EXPECT_GE(total_us(layer, Config::t3), 2 * link_us) << layer.model << layer.name;
    EXPECT_GE(total_us(layer, Config::t3_mca), ideal * 0.97) << layer.model << layer.name;
    EXPECT_LE(total_us(layer, Config::t3_mca), total_us(layer, Config::t3) * 1.05) << layer.model << layer.name;
  }
}

TEST(T3Simulation, FreeMemoryGivesTheIdeal) {
  Machine machine;
  machine.dram_GBps = 1e6;
  const SubLayer layer = main_sub_layers()[9];  // t-nlg FC-2 at 8 ranks: the GEMM is longer
  const double ideal = simulate(layer, Config::ideal_overlap, machine, Options{})->total_us;
  EXPECT_NEAR(simulate(layer, Config::t3, machine, Options{})->total_us / ideal, 1, 0.03);
}

TEST(T3Simulation, DirectReduceScatterNeedsNoReads) {
  Options options;
  options.direct_rs = true;
  for (const SubLayer& layer : {main_sub_layers()[1], main_sub_layers()[12]}) {
    const Result direct = simulate(layer, Config::t3, Machine{}, options).value();
    const Traffic want = fused_traffic(layer, Machine{}, options);
    EXPECT_EQ(direct.bytes.rs_rd, 0);
    EXPECT_NEAR(direct.bytes.gemm_wr / want.gemm_wr, 1, 1e-6);
    EXPECT_NEAR(direct.bytes.rs_wr / want.rs_wr, 1, 1e-6);
    EXPECT_LE(direct.total_us, total_us(layer, Config::t3));
  }
}

TEST(T3Simulation, QuantumDoesNotMatter) {
  const SubLayer layer = main_sub_layers()[9];
  Options fine;
  fine.quantum_bytes = 4 << 10;
  EXPECT_NEAR(total_us(layer, Config::t3, fine) / total_us(layer, Config::t3), 1, 0.01);
}

TEST(T3Simulation, SameBitsEveryTime) {
  for (const SubLayer& layer : {main_sub_layers()[0], main_sub_layers()[13]})
    for (const Config config : kConfigs) EXPECT_EQ(total_us(layer, config), total_us(layer, config));
}

TEST(T3Simulation, MoreBandwidthIsNeverSlower) {
  for (const SubLayer& layer : main_sub_layers()) {
    Machine fast;
    fast.link_GBps *= 1.5;
    EXPECT_LE(simulate(layer, Config::sequential, fast, Options{})->total_us, total_us(layer, Config::sequential));
    EXPECT_LE(simulate(layer, Config::ideal_overlap, fast, Options{})->total_us,
              total_us(layer, Config::ideal_overlap));
  }
}

TEST(T3, MachineFiles) {
  spec::Machine file;
  EXPECT_EQ(simulate(main_sub_layers()[0], Config::t3, machine_of(file), Options{}).status().code(),
            Errc::invalid_argument);
  file.sms = 132;
  file.gemm.sustained_TFLOPs.value = 650;
  file.memory.hbm_GBps.value = 4000;
  file.memory.l2_bytes = 50 << 20;
  file.link.egress_GBps.value = 380;
  const auto result = simulate(main_sub_layers()[0], Config::t3_mca, machine_of(file), Options{});
  ASSERT_TRUE(result.ok()) << result.status().message();
  EXPECT_LT(result->total_us, total_us(main_sub_layers()[0], Config::t3_mca) / 2);
}

TEST(T3, ModelsAndBadValues) {
  const auto layers = sub_layers("t-nlg", 8);
  ASSERT_TRUE(layers.ok());
  ASSERT_EQ(layers->size(), 4U);
  EXPECT_EQ((*layers)[1].k, 4 * 4256 / 8);
  EXPECT_EQ((*layers)[3].k, 3 * 4256 / 8);
  EXPECT_EQ(main_sub_layers().size(), 16U);
  EXPECT_EQ(sub_layers("bert", 8).status().message(),
            "t3: model is bert, wanted one of mega-gpt-2, t-nlg, gpt-3, palm, mt-nlg");
  EXPECT_EQ(sub_layers("t-nlg", 5).status().code(), Errc::invalid_argument);
  Options options;
  options.comm_cost = 0;
  EXPECT_EQ(simulate((*layers)[0], Config::t3, Machine{}, options).status().message(),
            "t3: comm_cost is 0, wanted > 0");
  EXPECT_EQ(simulate({"x", "y", 0, 1, 1, 8}, Config::t3, Machine{}, Options{}).status().code(), Errc::invalid_argument);
  EXPECT_EQ(simulate({"x", "y", 128, 256, 64, 4}, Config::t3, Machine{}, Options{}).status().message(),
            "t3: 2 tiles of 128 x 128 on 4 ranks, wanted at least one each");
  EXPECT_EQ(simulate({"x", "y", 1, 1, 1, 1}, Config::t3, Machine{}, Options{}).status().code(), Errc::invalid_argument);
}

}  // namespace
}  // namespace overlace::study::t3
