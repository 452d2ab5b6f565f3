// Whole steps over many GPUs against closed forms and properties.
#include <gtest/gtest.h>

#include "src/spec/costs.h"
#include "src/study/workload/transformer.h"

namespace overlace::study {
namespace {

spec::Machine machine(bool has_contention = false) {
  spec::Machine m = spec::find_machine("h200x4");
  if (!has_contention) m.contention.clear();
  return m;
}
Network one_gpu() { return nvswitch(1).value(); }

TransformerModel small_model() {
  TransformerModel model;
  model.hidden = 4096;
  model.intermediate = 16384;
  model.layers = 8;
  model.heads = 32;
  model.sequence = 2048;
  model.vocabulary = 1;
  return model;
}

TransformerTime step_of(const TransformerModel& model, const TransformerRun& run, const Network& network) {
  return transformer_step(model, run, machine(), network).value();
}

TEST(Transformer, OneGpuHasNoCommunication) {
  const TransformerModel model = small_model();
  TransformerRun run;
  run.tensor = 1;
  run.micro_batches = 3;
  const TransformerTime time = step_of(model, run, one_gpu());
  EXPECT_EQ(time.layer.exposed_us(), 0);
  EXPECT_EQ(time.gradient_us, 0);
  EXPECT_EQ(time.bubble_us, 0);
  const spec::Machine m = machine();
  const double head = spec::gemm_cost(m, {2048, 1, 4096}).us + m.latency.launch_us.value;
  const double pass = 8 * (time.layer.forward_us + time.layer.backward_us) + 3 * head;
  EXPECT_NEAR(time.step_us, 3 * pass + time.optimizer_us, 1e-3);
  EXPECT_NEAR(time.bound_us, time.step_us, 1e-3);
}

/// The forward pass of one layer from its parts.
TEST(Transformer, LayerIsTheSumOfItsParts) {
  TransformerModel model = small_model();
  TransformerRun run;
  run.tensor = 4;
  run.micro_batches = 1;
  const Network network = nvswitch(4).value();
  const spec::Machine m = machine();
  const double launch = m.latency.launch_us.value;
  const auto gemm = [&](int64_t rows, int64_t n, int64_t k) { return spec::gemm_cost(m, {rows, n, k}).us + launch; };
  const auto memory = [&](double bytes) { return spec::reduce_us(m, bytes) + launch; };
  const double tensor = 2.0 * 2048 * 4096, own = tensor / 4;
  const double gather = best_collective(Collective::all_gather, network, static_cast<uint64_t>(tensor))->us;
  const double scatter = best_collective(Collective::reduce_scatter, network, static_cast<uint64_t>(tensor))->us;
  const double heads = spec::gemm_cost(m, {2048, 2048, 128, 8}).us + spec::gemm_cost(m, {2048, 128, 2048, 8}).us;
  const double kv = 2 * 2 * 128;  // two of eight heads
  const double want = memory(2 * own) + gemm(2048, 1024 + static_cast<int64_t>(kv), 4096) + heads +
                      gemm(2048, 4096, 1024) + memory(4 * own) + gemm(2048, 8192, 4096) +
                      memory(2.0 * 2048 * (8192 + 4096)) + gemm(2048, 4096, 4096) + memory(3 * own) + 2 * gather +
                      2 * scatter;
  const TransformerTime time = step_of(model, run, network);
  EXPECT_NEAR(time.layer.forward_us, want, 1e-3);
  EXPECT_NEAR(time.layer.forward_us - time.layer.forward_compute_us, 2 * gather + 2 * scatter, 1e-3);
}

/// With p stages and m micro-batches the last pass ends (m + p - 1) passes after the first began.
TEST(Transformer, PipelineBubbleIsTheClosedForm) {
  const TransformerModel model = small_model();
  TransformerRun run;
  run.tensor = 1;
  for (const int stages : {1, 2, 4, 8})
    for (const int micro : {1, 2, 4, 16}) {
      run.pipeline = stages;
      run.micro_batches = micro;
      run.is_ideal = true;
      const TransformerTime time = step_of(model, run, nvswitch(stages).value());
      const spec::Machine m = machine();
      const double head = 3 * (spec::gemm_cost(m, {2048, 1, 4096}).us + m.latency.launch_us.value);
      const double pass = 8.0 / stages * (time.layer.forward_us + time.layer.backward_us);
      const double want = (micro + stages - 1) * pass + time.optimizer_us;
      EXPECT_GE(time.step_us, want - 1e-3) << stages << " stages, " << micro;
      EXPECT_LE(time.step_us, want + (micro + stages - 1) * head + 1e-3) << stages << " stages, " << micro;
      EXPECT_NEAR(time.bubble_us, (stages - 1) * pass, 1e-6);
      run.is_ideal = false;
      const TransformerTime real = step_of(model, run, nvswitch(stages).value());
      EXPECT_GE(real.step_us, time.step_us);
      EXPECT_LE(real.step_us, time.step_us + 2 * (micro + stages) * 200);  // messages of 16 MiB
    }
}

TEST(Transformer, GradientsHideBehindTheLastBackwardPass) {
  const TransformerModel model = small_model();
  TransformerRun run;
  run.tensor = 1;
  run.micro_batches = 2;
  const Network network = nvswitch(8, {3000, 0.1}).value();  // an all-reduce of a layer is shorter than its backward
  const TransformerTime hidden = step_of(model, run, network);
  EXPECT_EQ(hidden.replicas, 8);
  EXPECT_NEAR(hidden.gradient_exposed_us, hidden.gradient_us / 8, 1e-3);  // the first layer's has nothing behind it
  run.overlaps_gradients = false;
  const TransformerTime whole = step_of(model, run, network);
  EXPECT_NEAR(whole.gradient_exposed_us, whole.gradient_us, 1e-3);
  EXPECT_NEAR(whole.step_us - hidden.step_us, 7.0 / 8 * whole.gradient_us, 1e-3);
  EXPECT_EQ(whole.tokens, 8 * 2 * 2048.0);
}

TEST(Transformer, ChunksHideTransfersAndMoreBandwidthIsNeverSlower) {
  const TransformerModel model = small_model();
  TransformerRun run;
  run.tensor = 8;
  run.micro_batches = 1;
  double before = 1e300;
  for (const double GBps : {25.0, 50.0, 100.0, 200.0, 400.0, 1600.0}) {
    const Network network = nvswitch(8, {GBps, 0.25}).value();
    run.chunks = 1;
    const TransformerTime whole = step_of(model, run, network);
    EXPECT_LE(whole.step_us, before) << GBps;
    before = whole.step_us;
    run.chunks = 4;
    const TransformerTime chunked = step_of(model, run, network);
    if (GBps <= 400) {
      EXPECT_LT(chunked.layer.exposed_us(), whole.layer.exposed_us()) << GBps;
    }
    EXPECT_GE(chunked.layer.forward_us, chunked.layer.forward_compute_us);
    EXPECT_GE(chunked.step_us, chunked.bound_us - 1e-3);
    run.is_ideal = true;
    EXPECT_LE(step_of(model, run, network).step_us, chunked.step_us);
    run.is_ideal = false;
  }
}

/// Replicas that are alike are one: the same bits as all of them.
TEST(Transformer, FoldedReplicasAreTheUnfoldedOnes) {
  const TransformerModel model = small_model();
  TransformerRun run;
  run.tensor = 2;
  run.pipeline = 2;
  run.micro_batches = 4;
  const Network network = rail_fat_tree(4, 4, 50, 64, 1).value();
  const TransformerTime folded = transformer_step(model, run, machine(true), network).value();
  run.slower.assign(4, 1.0);
  const TransformerTime all = transformer_step(model, run, machine(true), network).value();
  EXPECT_EQ(folded.step_us, all.step_us);
  EXPECT_EQ(folded.bound_us, all.bound_us);
  run.slower[2] = 1.5;
  const TransformerTime straggler = transformer_step(model, run, machine(true), network).value();
  EXPECT_GT(straggler.step_us, 1.3 * all.step_us);  // all wait for it
  EXPECT_LT(straggler.step_us, 1.5 * all.step_us);
}

TEST(Transformer, ThousandGpusOnBothNetworks) {
  TransformerRun run;
  run.pipeline = 4;
  run.micro_batches = 16;
  for (const Network& network : {rail_fat_tree(128, 8, 50, 64, 1).value(), torus({32, 32}, {100, 0.5}).value()}) {
    base::Trace timeline;
    const TransformerTime time = transformer_step({}, run, machine(true), network, &timeline).value();
    EXPECT_EQ(time.replicas, 32);
    EXPECT_GE(time.step_us, time.bound_us);
    EXPECT_GT(time.step_us, time.compute_us);
    EXPECT_GT(time.TFLOPs(), 50);
    EXPECT_LT(time.TFLOPs(), 700);
    EXPECT_GT(timeline.spans.size(), 4U * 16 * 2);
  }
}

TEST(Transformer, RefusesWhatDoesNotDivide) {
  const auto refused = [](auto change) {
    TransformerModel model = small_model();
    TransformerRun run;
    run.tensor = 2;
    change(&model, &run);
    return transformer_step(model, run, machine(), nvswitch(8).value()).status();
  };
  using M = TransformerModel;
  using R = TransformerRun;
  EXPECT_EQ(refused([](M*, R* r) { r->tensor = 3; }).code(), Errc::invalid_argument);
  EXPECT_EQ(refused([](M*, R* r) { r->pipeline = 0; }).code(), Errc::invalid_argument);
  EXPECT_EQ(refused([](M* m, R*) { m->heads = 31; }).code(), Errc::invalid_argument);
  EXPECT_EQ(refused([](M* m, R* r) { m->layers = 7, r->pipeline = 4; }).code(), Errc::invalid_argument);
  EXPECT_EQ(refused([](M* m, R*) { m->hidden = 0; }).code(), Errc::invalid_argument);
  EXPECT_EQ(refused([](M*, R* r) {
              r->slower = {1, 2};
            }).message(),
            "transformer: 2 factors of slowness, wanted 4 or none");
  EXPECT_EQ(refused([](M*, R* r) { r->slower = {1, 2, 0, 1}; }).code(), Errc::invalid_argument);
  const std::string wanted = " ranks, wanted a divisor of the heads that the ranks divide, or that divides them";
  EXPECT_EQ(refused([](M* m, R*) { m->kv_heads = 64; }).message(),
            "transformer: 64 key-value heads of 32 heads on 2" + wanted);
  EXPECT_EQ(refused([](M* m, R* r) { m->hidden = 3072, m->heads = 24, m->kv_heads = 12, r->tensor = 8; }).message(),
            "transformer: 12 key-value heads of 24 heads on 8" + wanted);
  EXPECT_TRUE(refused([](M* m, R* r) { m->kv_heads = 2, r->tensor = 8; }).ok());
  EXPECT_TRUE(refused([](M* m, R* r) { m->kv_heads = 16, r->tensor = 8; }).ok());
  spec::Machine none;
  EXPECT_EQ(transformer_step(small_model(), {}, none, nvswitch(8).value()).status().code(), Errc::not_supported);
}

/// Sizes that are each in range and together more than can be simulated.
TEST(Transformer, RefusesMoreTasksThanItCanHold) {
  TransformerModel model = small_model();
  model.layers = 4096;
  TransformerRun run;
  run.tensor = 1;
  run.pipeline = run.micro_batches = 4096;
  const auto time = transformer_step(model, run, machine(), torus({64, 64}, {100, 0.5}).value());
  EXPECT_EQ(
      time.status().message(),
      "transformer: 1 replicas that differ x (4096 stages x 4096 micro-batches x 4, 4096 layers x 2) are 67121152 "
      "tasks, wanted at most 4194304");
}

}  // namespace
}  // namespace overlace::study
