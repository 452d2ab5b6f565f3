// V3, V9: whole iterations.
#include <cmath>

#include "src/study/gemm/minimize.h"
#include "src/study/validate/figures.h"
#include "src/study/workload/dlrm.h"
#include "src/study/workload/megatron.h"

namespace overlace::study {
namespace {

constexpr double kKernelGapUs = 3;  // between kernels of a busy stream; single calls also pay the launch
constexpr double kAllReduceUs = 30, kAllReduceGBps = 230, kPipelineGBps = 25;

struct Iteration {
  GptModel model;
  GptRun run;
  double seconds = 0;
};

std::vector<Iteration> iterations(const Golden& table) {
  std::vector<Iteration> all;
  for (size_t i = 0; i < table.rows(); ++i) {
    const auto whole = [&](const char* column) { return static_cast<int>(table.integer(i, column)); };
    const GptModel model = {table.integer(i, "hidden"), whole("layers"), whole("heads")};
    GptRun run = {8, whole("pipeline"), whole("interleave"), whole("batch"), whole("micro_batch"), true};
    all.push_back({model, run, table.number(i, "full_s")});
    run.recomputes_all = false;
    all.push_back({model, run, table.number(i, "selective_s")});
  }
  return all;
}

/// Parameters' operations at the peak: forward, backward, and forward again where all is recomputed.
double peak_s(const Iteration& one) {
  const double h = static_cast<double>(one.model.hidden), s = static_cast<double>(one.model.sequence);
  const double passes = one.run.recomputes_all ? 4 : 3;
  const double flops = passes * one.run.batch * s * one.model.layers * (24 * h * h + 4 * s * h);
  return flops / (one.run.tensor_ranks * one.run.pipeline_ranks) / (kA100.tflops * 1e12);
}

}  // namespace

void validate_megatron(const std::string& golden, Rows* rows) {
  const std::vector<Iteration> all = iterations(load(golden, "megatron/iteration_a100.csv"));
  TrainingMachine machine;
  machine.gemm = kA100;
  machine.constants = fit_gemm(kA100, gemm_points(load(golden, "llmcompass/gemm_a100.csv"))).value();
  machine.constants.launch_us = kKernelGapUs;
  machine.all_reduce_us = kAllReduceUs;
  machine.all_reduce_GBps = kAllReduceGBps;
  machine.pipeline_GBps = kPipelineGBps;
  const auto seconds = [&](const Iteration& one) { return gpt_iteration(one.model, one.run, machine).value().total_s; };
  // Two constants from eight points: what clocks leave of single calls' rate, and the memory rate of small kernels.
  const Objective objective = [&](const std::vector<double>& logs) {
    machine.sustained_share = std::exp(logs[0]);
    machine.memory_share = std::exp(logs[1]);
    double sum = 0;
    for (const Iteration& one : all) sum += std::pow(std::log(seconds(one) / one.seconds), 2);
    return sum;
  };
  objective(minimize(objective, {std::log(0.9), std::log(0.8)}, 0.1, 30));
  Errors errors, baseline;
  for (const Iteration& one : all) {
    errors.add(seconds(one), one.seconds);
    baseline.add(peak_s(one), one.seconds);
  }
  rows->push_back({"V3", "Megatron iterations, 22B to 1T: mean error, two constants fitted", "%", kNone, errors.mean(),
                   0, 4, baseline.mean()});
  rows->push_back(
      {"V3", "Megatron iterations, 22B to 1T: largest error", "%", kNone, errors.largest, 0, 9, baseline.largest});
}

void validate_dlrm(const std::string& golden, Rows* rows) {
  constexpr double kPoints = 3;
  const Golden table = load(golden, "dlrm/bands.csv");
  for (size_t i = 0; i < table.rows(); ++i) {
    const std::string& network = table.text(i, "network");
    DlrmMachine machine;
    machine.all_to_all_GBps = dlrm_all_to_all_GBps(network).value();
    const DlrmBand band = dlrm_band(machine).value();
    const auto edge = [&](const char* column, const char* name, double ours) {
      const double published = table.number(i, column);
      rows->push_back({"V9", "DLRM on 128 GPUs, " + network + ": " + name, "%", published, ours * 100,
                       published - kPoints, published + kPoints, 0});
    };
    edge("forward_least", "least gain, forward", band.least_forward);
    edge("forward_most", "largest gain, forward", band.most_forward);
    edge("least", "least gain", band.least);
    edge("most", "largest gain", band.most);
  }
}

}  // namespace overlace::study
