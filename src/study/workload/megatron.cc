#include "src/study/workload/megatron.h"

namespace overlace::study {
namespace {

constexpr double kPipelineLatencyUs = 5;
constexpr double kGptOptimizerBytes =
    28;  // per parameter: fp32 master, momentum, variance read and written, fp16 gradient

/// One layer and micro-batch on one rank.
class GptLayer {
 public:
  GptLayer(const GptModel& model, const GptRun& run, const TrainingMachine& machine)
      : model_(model), machine_(machine), ranks_(run.tensor_ranks), is_split_(!run.recomputes_all) {
    tokens_ = model.sequence * run.micro_batch;
    products_ = static_cast<int64_t>(model.heads) / ranks_ * run.micro_batch;
    machine_.constants.tensor_share *= machine.sustained_share;
  }

  double tokens_bytes() const { return 2.0 * static_cast<double>(tokens_) * static_cast<double>(model_.hidden); }

  double gemm_us(int64_t m, int64_t n, int64_t k, int64_t batch = 1) const {
    return best_gemm_time({m, n, k, 2, batch}, machine_.gemm, machine_.constants).value().time_us();
  }
  double memory_us(double bytes) const {
    return bytes / (machine_.gemm.hbm_GBps * 1e3 * machine_.memory_share) + machine_.constants.launch_us;
  }
  double all_reduce_us() const {
    const double share = 2.0 * (ranks_ - 1) / ranks_;
    return machine_.all_reduce_us + share * tokens_bytes() / (machine_.all_reduce_GBps * 1e3);
  }

  double linear_us() const {
    const int64_t h = model_.hidden;
    return gemm_us(tokens_, 3 * h / ranks_, h) + gemm_us(tokens_, h, h / ranks_) + gemm_us(tokens_, 4 * h / ranks_, h) +
           gemm_us(tokens_, h, 4 * h / ranks_);
  }
  double core_gemm_us() const {
    const int64_t s = model_.sequence, of_head = model_.hidden / model_.heads;
    return gemm_us(s, s, of_head, products_) + gemm_us(s, of_head, s, products_);
  }
  /// Scale, mask, softmax (one read, one write, the mask), then dropout with its mask; the same again backward.
  double core_memory_us() const {
    const double scores = 2.0 * static_cast<double>(model_.sequence * model_.sequence * products_);
    return memory_us(3 * scores) + memory_us(2.5 * scores);
  }
  /// Two norms, two residual additions with dropout, GELU and biases: operands read and written.
  double element_wise_us(double norms, double residuals, double gelu) const {
    const double own = tokens_bytes() / (is_split_ ? ranks_ : 1), part = tokens_bytes() / ranks_;
    return 2 * memory_us(norms * own) + 2 * memory_us(residuals * own) + memory_us(gelu * 4 * part) +
           memory_us(2 * 3 * part);
  }
  double forward_memory_us() const { return element_wise_us(2, 3.5, 2); }
  double backward_memory_us() const { return element_wise_us(3, 2.5, 3); }
  double head_us() const {
    const int64_t own = model_.vocabulary / ranks_;
    return 3 * gemm_us(tokens_, own, model_.hidden) + memory_us(16.0 * static_cast<double>(tokens_ * own));
  }

 private:
  const GptModel& model_;
  TrainingMachine machine_;
  int ranks_;
  bool is_split_;
  int64_t tokens_ = 0, products_ = 0;
};

base::Status check_gpt_run(const GptModel& model, const GptRun& run) {
  if (model.hidden < 1 || model.heads < 1 || model.sequence < 1 || run.tensor_ranks < 1 || run.micro_batch < 1 ||
      run.pipeline_ranks < 1 || run.interleave < 1 || run.batch < 1)
    return base::invalid_argument(
        "gpt: hidden {}, heads {}, sequence {}, {} x {} ranks, batch {} of {}, wanted >= 1 each", model.hidden,
        model.heads, model.sequence, run.tensor_ranks, run.pipeline_ranks, run.batch, run.micro_batch);
  if (model.heads % run.tensor_ranks != 0 || model.hidden % model.heads != 0)
    return base::invalid_argument("gpt: hidden {}, {} heads on {} ranks, wanted multiples", model.hidden, model.heads,
                                  run.tensor_ranks);
  if (model.layers % (int64_t{run.pipeline_ranks} * run.interleave) != 0 || run.batch % run.micro_batch != 0)
    return base::invalid_argument("gpt: {} layers on {} stages of {} parts, batch {} of {}, wanted multiples",
                                  model.layers, run.pipeline_ranks, run.interleave, run.batch, run.micro_batch);
  return {};
}

}  // namespace

base::Result<IterationTime> gpt_iteration(const GptModel& model, const GptRun& run, const TrainingMachine& machine) {
  OVERLACE_TRY(check_gpt_run(model, run));
  const base::Result<GemmTime> probe = best_gemm_time({1, 1, 1}, machine.gemm, machine.constants);
  if (!probe.ok()) return probe.status();
  const GptLayer layer(model, run, machine);
  const double linear = layer.linear_us(), core = layer.core_gemm_us(), core_memory = layer.core_memory_us();
  IterationTime time;
  // Forward once, backward with two GEMMs for each; then what is computed again.
  time.gemm_us = 3 * (linear + core) + (run.recomputes_all ? linear + core : core);
  time.memory_us = 3 * core_memory + layer.forward_memory_us() + layer.backward_memory_us() +
                   (run.recomputes_all ? layer.forward_memory_us() : 0);
  time.all_reduce_us = (run.recomputes_all ? 6 : 4) * layer.all_reduce_us();
  const double micro_batches = run.batch / run.micro_batch, stages = run.pipeline_ranks;
  double stage_us = (time.gemm_us + time.memory_us + time.all_reduce_us) * model.layers / stages;
  if (run.pipeline_ranks > 1)
    stage_us += 2 * run.interleave * layer.tokens_bytes() / (machine.pipeline_GBps * 1e3) + 2 * kPipelineLatencyUs;
  const double parameters =
      12.0 * model.layers * static_cast<double>(model.hidden * model.hidden) / (run.tensor_ranks * stages);
  const double bubble = (stages - 1) / run.interleave;
  time.total_s = ((micro_batches + bubble) * stage_us + micro_batches * layer.head_us() +
                  layer.memory_us(kGptOptimizerBytes * parameters)) *
                 1e-6;
  return time;
}

}  // namespace overlace::study
