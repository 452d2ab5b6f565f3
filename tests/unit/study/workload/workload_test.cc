#include <gtest/gtest.h>

#include "src/study/network/curve.h"
#include "src/study/t3/summary.h"
#include "src/study/workload/dlrm.h"
#include "src/study/workload/megatron.h"

namespace overlace::study {
namespace {

TrainingMachine training_machine() {
  TrainingMachine m;
  m.gemm = {108, 312, 2000};
  m.constants = {3, 1, 0.9, 100, 0.9, 20};
  m.all_reduce_us = 30;
  m.all_reduce_GBps = 230;
  m.pipeline_GBps = 25;
  return m;
}

double seconds(const GptModel& model, const GptRun& run) {
  return gpt_iteration(model, run, training_machine()).value().total_s;
}

TEST(Megatron, MoreRecomputationTakesLonger) {
  const GptModel model = {12288, 96, 96};
  GptRun run = {8, 8, 3, 64, 1, true};
  const double all = seconds(model, run);
  run.recomputes_all = false;
  EXPECT_LT(seconds(model, run), all * 0.85);
}

TEST(Megatron, BubbleShrinksWithInterleavingAndBatch) {
  const GptModel model = {12288, 96, 96};
  GptRun plain = {8, 8, 1, 64, 1, false}, interleaved = plain, twice = plain;
  interleaved.interleave = 3;
  twice.batch = 128;
  EXPECT_LT(seconds(model, interleaved), seconds(model, plain));
  // (128 + 7) / (64 + 7) micro-batches, and the optimizer once.
  EXPECT_NEAR(seconds(model, twice) / seconds(model, plain), 135.0 / 71, 0.03);
}

TEST(Megatron, RefusesWhatDoesNotDivide) {
  EXPECT_EQ(gpt_iteration({12288, 96, 95}, {8, 8, 3, 64, 1, true}, training_machine()).status().code(),
            Errc::invalid_argument);
  EXPECT_EQ(gpt_iteration({12288, 97, 96}, {8, 8, 3, 64, 1, true}, training_machine()).status().code(),
            Errc::invalid_argument);
  EXPECT_EQ(gpt_iteration({12288, 96, 96}, {8, 8, 3, 64, 3, true}, training_machine()).status().code(),
            Errc::invalid_argument);
  EXPECT_EQ(gpt_iteration({0, 96, 96}, {8, 8, 3, 64, 1, true}, training_machine()).status().code(),
            Errc::invalid_argument);
}

TEST(Dlrm, StepIsTheClosedForm) {
  DlrmModel model;
  model.tables = 2;
  const DlrmMachine rates;
  const DlrmTime time = dlrm_step(model, rates, dlrm_assumed(model, rates).value()).value();
  const double pooled = 2.0 * 128 * 256 * 92 * 4;
  EXPECT_DOUBLE_EQ(time.gather_us, pooled * 70 / 1.2e6);
  EXPECT_DOUBLE_EQ(time.all_to_all_us, pooled / 50e3);
  EXPECT_DOUBLE_EQ(time.unfused_us, 2.5 * time.gather_us + 2 * time.all_to_all_us + time.mlp_us + time.all_reduce_us);
  EXPECT_LT(time.fused_us, time.forward_fused_us);
  EXPECT_GT(time.gain(), time.forward_gain());
}

TEST(Dlrm, FusingNeverLoses) {
  DlrmMachine fast;
  fast.all_to_all_GBps = 1e7;  // nothing to hide: the loss of fusing would be all there is
  EXPECT_GE(dlrm_step({}, fast, dlrm_assumed({}, fast).value())->gain(), 0);
  EXPECT_GE(dlrm_band(fast)->least, 0);
}

TEST(Dlrm, NetworksAndBadValues) {
  EXPECT_GT(dlrm_all_to_all_GBps("torus").value(), 3 * dlrm_all_to_all_GBps("ring").value());
  EXPECT_GT(dlrm_all_to_all_GBps("rail").value(), dlrm_all_to_all_GBps("torus").value());
  EXPECT_EQ(dlrm_all_to_all_GBps("star").status().message(), "dlrm: network is star, wanted torus, ring or rail");
  DlrmModel model;
  model.tables = 0;
  EXPECT_EQ(dlrm_step(model, {}, {}).status().code(), Errc::invalid_argument);
  EXPECT_EQ(dlrm_assumed(model, {}).status().code(), Errc::invalid_argument);
  EXPECT_EQ(dlrm_simulated(model, {}, spec::Machine{}).status().code(), Errc::invalid_argument);
  model = {.element_bytes = 8};
  EXPECT_EQ(dlrm_simulated(model, {}, spec::Machine{}).status().message(),
            "dlrm: elements have 8 bytes, wanted 2 or 4");
}

TEST(Dlrm, SchedulesTakeTheGpuAndTheNetwork) {
  const spec::Machine gpu = spec::find_machine("h200x4");
  DlrmModel model{.gpus = 8, .tables = 4, .local_batch = 1024};
  const double pooled = 4.0 * 8 * 1024 * 92 * 4, sent = pooled * 7 / 8;
  DlrmMachine slow;
  slow.all_to_all_GBps = 1;  // the exchange is nearly all there is, and pooling hides behind it
  const DlrmExchange far = dlrm_simulated(model, slow, gpu).value();
  EXPECT_NEAR(far.all_to_all_us, sent / 1e3, 0.1 * sent / 1e3);
  EXPECT_NEAR(far.serial_us, far.gather_us + far.all_to_all_us, 0.1 * far.serial_us);
  EXPECT_LT(far.fused_loss * far.all_to_all_us, 0.99 * far.serial_us);
  const double read_us = 71 * pooled / (gpu.memory.reduce_GBps.value * 1e3);  // rows of 70 entries, and the sums
  EXPECT_GE(far.gather_us, 0.9 * read_us);
  spec::Machine other = gpu;
  other.memory.reduce_GBps.value *= 0.5;
  other.memory.reduce_us = {};
  DlrmMachine fast;
  fast.all_to_all_GBps = 300;
  const DlrmExchange near = dlrm_simulated(model, fast, other).value();
  EXPECT_LT(near.all_to_all_us, 0.1 * far.all_to_all_us);
  EXPECT_GT(near.gather_us, 1.9 * read_us);
  const DlrmTime time = dlrm_step(model, fast, near).value();
  EXPECT_DOUBLE_EQ(time.gather_us, near.gather_us);
  EXPECT_LT(time.forward_fused_us, time.unfused_us);
}

TEST(Curve, PartsAndTiers) {
  const ProtocolCurve curve = fit_protocols({1, 2, 3, 10, 20}, {11, 12, 13, 120, 140}, {0, 10});
  EXPECT_NEAR(curve.us(2.5), 12.5, 1e-9);
  EXPECT_NEAR(curve.us(15), 130, 1e-9);
  const TierConstants want = {0.9, 20, 0};
  std::vector<TierPoint> points;
  for (const double ideal : {100.0, 1e3, 1e4})
    for (const double steps : {1.0, 7.0, 30.0}) points.push_back({ideal, steps, tier_share(want, ideal, steps)});
  const TierConstants got = fit_tier(points, false);
  EXPECT_NEAR(got.efficiency, 0.9, 1e-3);
  EXPECT_NEAR(got.alpha_us, 20, 0.1);
}

TEST(T3Summary, SensitivityCoversTheGridAndCostsNeverHelp) {
  const auto all = t3::sensitivity().value();
  ASSERT_EQ(all.size(), 18U);
  EXPECT_EQ(all.front().dram_GBps, 700);
  EXPECT_EQ(all.back().comm_cost, 2);
  for (size_t i = 0; i + 3 < 9; ++i)  // dearer updates at equal communication
    EXPECT_GE(all[i].summary.t3.geomean, all[i + 3].summary.t3.geomean);
}

}  // namespace
}  // namespace overlace::study
