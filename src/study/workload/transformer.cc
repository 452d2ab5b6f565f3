#include "src/study/workload/transformer.h"

#include <algorithm>

#include "src/base/ceil_div_pod.h"
#include "src/spec/costs.h"

namespace overlace::study {
namespace {

constexpr double kOptimizerBytes = 28;  // per parameter: fp32 master and moments read and written, gradient
constexpr double kGradientBytes = 2, kElementBytes = 2;
/// GEMMs with tensor-parallel transfers are marked for contention like this.
constexpr spec::Load kGemm = spec::Load::gemm_tensor, kMemory = spec::Load::reduce, kTransfer = spec::Load::ce_out;

base::Status check_transformer_run(const TransformerModel& model, const TransformerRun& run,
                                   const spec::Machine& machine, const Network& network) {
  if (!machine.has_costs())
    return base::error(Errc::not_supported, "machine {}: it has limits only, wanted costs of gemm, copy and link",
                       machine.name);
  for (const int64_t size : {model.hidden, model.intermediate, model.vocabulary, model.sequence})
    if (size < 1 || size > (1 << 24))
      return base::invalid_argument("transformer: a size is {}, wanted 1 to 16777216", size);
  for (const int count : {model.layers, model.heads, model.kv_heads, run.tensor, run.pipeline, run.micro_batches,
                          run.sequences, run.chunks})
    if (count < 1 || count > 4096) return base::invalid_argument("transformer: a count is {}, wanted 1 to 4096", count);
  if (network.ranks % (int64_t{run.tensor} * run.pipeline) != 0)
    return base::invalid_argument("transformer: {} GPUs in {} x {} (tensor x pipeline), wanted a multiple",
                                  network.ranks, run.tensor, run.pipeline);
  if (model.layers % run.pipeline != 0)
    return base::invalid_argument("transformer: {} layers on {} stages, wanted a multiple", model.layers, run.pipeline);
  if (model.heads % run.tensor != 0 || model.hidden % model.heads != 0 || model.intermediate % run.tensor != 0)
    return base::invalid_argument("transformer: hidden {}, {} heads, intermediate {} on {} ranks, wanted multiples",
                                  model.hidden, model.heads, model.intermediate, run.tensor);
  if (model.heads % model.kv_heads != 0 || (model.kv_heads % run.tensor != 0 && run.tensor % model.kv_heads != 0))
    return base::invalid_argument(
        "transformer: {} key-value heads of {} heads on {} ranks, wanted a divisor of the heads that the ranks divide, "
        "or that divides them",
        model.kv_heads, model.heads, run.tensor);
  const int replicas = network.ranks / (run.tensor * run.pipeline);
  if (!run.slower.empty() && run.slower.size() != static_cast<size_t>(replicas))
    return base::invalid_argument("transformer: {} factors of slowness, wanted {} or none", run.slower.size(),
                                  replicas);
  for (const double factor : run.slower)
    if (!(factor > 0) || !(factor <= 1000))
      return base::invalid_argument("transformer: a replica is {} times as slow, wanted up to 1000", factor);
  // Each way a pass and what it sends; the last pass, its all-reduces and the optimizer.
  const int64_t differing = run.slower.empty() ? 1 : replicas, stages = run.pipeline;
  const int64_t tasks = differing * (4 * stages * run.micro_batches + 2 * model.layers + stages);
  if (tasks > kMostTasks)
    return base::invalid_argument(
        "transformer: {} replicas that differ x ({} stages x {} micro-batches x 4, {} layers x 2) are {} tasks, wanted "
        "at most {}",
        differing, stages, run.micro_batches, model.layers, tasks, kMostTasks);
  return {};
}

/// One layer's operators as a step of one rank: all ranks of a tensor-parallel group do the same.
class LayerSteps {
 public:
  LayerSteps(const TransformerModel& model, const TransformerRun& run, const spec::Machine& machine,
             const Network& network)
      : model_(model), run_(run), machine_(machine), network_(network) {
    tokens_ = model.sequence * run.sequences;
    // Grouped-query attention: at least one key-value head on each rank.
    const int64_t head = model.hidden / model.heads;
    kv_ = 2 * std::max<int64_t>(1, model.kv_heads / run.tensor) * head;
  }

  base::Result<LayerTime> time() {
    for (const Collective op : {Collective::all_gather, Collective::reduce_scatter}) {
      if (run_.tensor == 1 || run_.is_ideal) break;
      const auto bytes = static_cast<uint64_t>(whole_bytes() / run_.chunks);
      const auto us = best_collective(op, network_, std::max<uint64_t>(bytes, 1), {}, {1, run_.tensor});
      if (!us.ok()) return us.status();
      (op == Collective::all_gather ? gather_us_ : scatter_us_) = us->us;
    }
    LayerTime out;
    for (const bool is_forward : {true, false}) {
      Step step(1);
      is_forward ? forward(&step) : backward(&step);
      const base::Result<StepTime> time = step.run(machine_.contention);
      if (!time.ok()) return time.status();
      (is_forward ? out.forward_us : out.backward_us) = time->us;
      (is_forward ? out.forward_compute_us : out.backward_compute_us) = time->compute_us;
    }
    return out;
  }

  /// Bytes of all tokens of a micro-batch.
  double whole_bytes() const {
    return kElementBytes * static_cast<double>(tokens_) * static_cast<double>(model_.hidden);
  }
  double gemm_us(int64_t m, int64_t n, int64_t k, int64_t batch = 1) const {
    return m == 0 ? 0 : spec::gemm_cost(machine_, {m, n, k, batch}).us + machine_.latency.launch_us.value;
  }
  int64_t tokens() const { return tokens_; }

 private:
  double memory_us(double bytes) const { return spec::reduce_us(machine_, bytes) + machine_.latency.launch_us.value; }
  void memory(Step* step, const char* name, double bytes) const {
    step->add({.name = name, .us = memory_us(bytes), .load = kMemory, .bytes = static_cast<int64_t>(bytes)});
  }
  int gemm(Step* step, const char* name, int64_t m, int64_t n, int64_t k, std::initializer_list<int> after = {}) const {
    const double flops = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
    return step->add({.name = name, .us = gemm_us(m, n, k), .load = kGemm, .flops = flops}, after);
  }
  int transfer(Step* step, const char* name, double us, std::initializer_list<int> after) const {
    return step->add({.name = name,
                      .lane = kLocalLane,
                      .us = us,
                      .load = kTransfer,
                      .bytes = static_cast<int64_t>(whole_bytes() / run_.chunks)},
                     after);
  }
  int last_ = -1;  // what the next operator's transfer waits for

  /// Rows of a chunk: what is left over goes to the first.
  int64_t rows_of(int chunk, int64_t rows) const { return rows / run_.chunks + (chunk == 0 ? rows % run_.chunks : 0); }
  /// The local rows' GEMMs go on while the others' arrive, chunk by chunk; whole: after all have arrived.
  void gather_gemm(Step* step, const char* name, int64_t n, int64_t k) {
    const int before = last_;
    if (run_.chunks == 1 || run_.tensor == 1) {
      const int arrived = run_.tensor == 1 ? before : transfer(step, "all_gather", gather_us_, {before});
      last_ = gemm(step, name, tokens_, n, k, {arrived});
      return;
    }
    const int64_t own = tokens_ / run_.tensor;
    last_ = gemm(step, name, own, n, k, {before});
    for (int chunk = 0; chunk < run_.chunks; ++chunk) {
      const int arrived = transfer(step, "all_gather", gather_us_, {before});
      last_ = gemm(step, name, rows_of(chunk, tokens_ - own), n, k, {arrived});
    }
  }
  /// What others get is computed first, and leaves chunk by chunk while the rest is computed.
  void gemm_scatter(Step* step, const char* name, int64_t n, int64_t k) {
    if (run_.chunks == 1 || run_.tensor == 1) {
      last_ = gemm(step, name, tokens_, n, k, {last_});
      if (run_.tensor > 1) last_ = transfer(step, "reduce_scatter", scatter_us_, {last_});
    } else {
      const int64_t own = tokens_ / run_.tensor;
      int sent = -1, product = last_;
      for (int chunk = 0; chunk < run_.chunks; ++chunk) {
        product = gemm(step, name, rows_of(chunk, tokens_ - own), n, k, {product});
        sent = transfer(step, "reduce_scatter", scatter_us_, {product});
      }
      gemm(step, name, own, n, k, {product});
      last_ = sent;
    }
  }
  /// Element-wise work on the own tokens, behind all there was.
  void element_wise(Step* step, const char* name, double tensors) {
    const double bytes = tensors * whole_bytes() / run_.tensor;
    last_ = step->add({.name = name, .us = memory_us(bytes), .load = kMemory, .bytes = static_cast<int64_t>(bytes)},
                      {last_});
  }
  void core(Step* step, int products) {
    const int64_t head = model_.hidden / model_.heads;
    const int64_t batch = int64_t{run_.sequences} * model_.heads / run_.tensor, s = model_.sequence;
    for (int i = 0; i < products; ++i) {
      const double flops = 2.0 * static_cast<double>(batch * s) * static_cast<double>(s * head);
      const double us = spec::gemm_cost(machine_, {s, i % 2 == 0 ? s : head, i % 2 == 0 ? head : s, batch}).us;
      last_ = step->add({.name = "attention", .us = us, .load = kGemm, .flops = flops}, {last_});
    }
  }

  void forward(Step* step) {
    last_ = -1;
    const int64_t h = model_.hidden, t = run_.tensor, up = (model_.is_gated ? 2 : 1) * model_.intermediate / t;
    element_wise(step, "norm", 2);
    gather_gemm(step, "qkv", h / t + kv_, h);
    core(step, 2);
    gemm_scatter(step, "out", h, h / t);
    element_wise(step, "add_norm", 4);
    gather_gemm(step, "up", up, h);
    memory(step, "activation",
           kElementBytes * static_cast<double>(tokens_) * static_cast<double>(up + model_.intermediate / t));
    gemm_scatter(step, "down", h, model_.intermediate / t);
    element_wise(step, "add", 3);
  }
  /// Adds each GEMM's gradient of its input, with the forward transfer reversed, and of its weight. What was
  /// gathered forward is gathered again for the weight's, beside other GEMMs.
  void backward(Step* step) {
    last_ = -1;
    const int64_t h = model_.hidden, t = run_.tensor, wide = model_.intermediate / t;
    const int64_t up = (model_.is_gated ? 2 : 1) * wide, qkv = h / t + kv_;
    gather_gemm(step, "down_dx", wide, h);
    gemm(step, "down_dw", wide, h, tokens_);
    memory(step, "activation_dx", 2 * kElementBytes * static_cast<double>(tokens_) * static_cast<double>(up + wide));
    gather_again(step);
    gemm_scatter(step, "up_dx", h, up);
    gemm(step, "up_dw", h, up, tokens_, {again_});
    element_wise(step, "norm_dx", 5);
    gather_gemm(step, "out_dx", h / t, h);
    gemm(step, "out_dw", h / t, h, tokens_);
    core(step, 5);
    gather_again(step);
    gemm_scatter(step, "qkv_dx", h, qkv);
    gemm(step, "qkv_dw", h, qkv, tokens_, {again_});
    element_wise(step, "norm_dx", 5);
  }
  int again_ = -1;
  void gather_again(Step* step) {
    again_ = -1;
    for (int chunk = 0; run_.tensor > 1 && chunk < run_.chunks; ++chunk)
      again_ = transfer(step, "all_gather", gather_us_, {last_});
  }

  const TransformerModel& model_;
  const TransformerRun& run_;
  const spec::Machine& machine_;
  const Network& network_;
  int64_t tokens_ = 0, kv_ = 0;
  double gather_us_ = 0, scatter_us_ = 0;  // of a chunk
};

/// Passes of micro-batches of a stage: as many forward as keep the later stages busy, then one each way in turn.
struct Pass {
  bool is_forward;
  int micro_batch;
};
std::vector<Pass> passes_of(int stage, int stages, int micro_batches) {
  std::vector<Pass> out;
  const int ahead = std::min(stages - 1 - stage, micro_batches);
  for (int i = 0; i < ahead; ++i) out.push_back({true, i});
  for (int i = 0; i + ahead < micro_batches; ++i) {
    out.push_back({true, i + ahead});
    out.push_back({false, i});
  }
  for (int i = micro_batches - ahead; i < micro_batches; ++i) out.push_back({false, i});
  return out;
}

/// What the passes of all stages are made of.
struct Pieces {
  LayerTime layer;
  double head_forward_us = 0, head_backward_us = 0;  // last stage
  double shift_us = 0, gradient_us = 0, optimizer_us = 0;
};

/// A rank of each stage of each replica; alike replicas are one.
class StageSteps {
 public:
  StageSteps(const TransformerModel& model, const TransformerRun& run, const Pieces& pieces, bool has_gradients)
      : model_(model),
        run_(run),
        pieces_(pieces),
        has_gradients_(has_gradients),
        replicas_(std::max<int>(1, static_cast<int>(run.slower.size()))),
        step_(replicas_ * run.pipeline) {}

  const Step& build() {
    // Tasks are added in an order in which each finds what it waits for: stage by stage as far as it can go.
    const int stages = run_.pipeline;
    std::vector<std::vector<Pass>> todo;
    for (int stage = 0; stage < stages; ++stage) todo.push_back(passes_of(stage, stages, run_.micro_batches));
    forward_.assign(static_cast<size_t>(replicas_ * stages * run_.micro_batches), -1);
    backward_ = forward_;
    for (int bucket = 0; bucket < stages * layers(); ++bucket) groups_.push_back(step_.new_group());
    for (int replica = 0; replica < replicas_; ++replica) {
      std::vector<size_t> next(static_cast<size_t>(stages), 0);
      for (bool goes_on = true; goes_on;) {
        goes_on = false;
        for (int stage = 0; stage < stages; ++stage)
          for (size_t& i = next[static_cast<size_t>(stage)];
               i < todo[static_cast<size_t>(stage)].size() && add(replica, stage, todo[static_cast<size_t>(stage)][i]);
               ++i)
            goes_on = true;
      }
    }
    return step_;
  }

 private:
  int layers() const { return model_.layers / run_.pipeline; }
  size_t slot(int replica, int stage, int micro_batch) const {
    return (static_cast<size_t>(replica) * static_cast<size_t>(run_.pipeline) + static_cast<size_t>(stage)) *
               static_cast<size_t>(run_.micro_batches) +
           static_cast<size_t>(micro_batch);
  }
  int compute(int replica, int rank, std::string name, double us, std::initializer_list<int> after) {
    const double factor = run_.slower.empty() ? 1 : run_.slower[static_cast<size_t>(replica)];
    return step_.add({.name = std::move(name), .rank = rank, .us = us * factor, .load = kGemm}, after);
  }

  /// False while what the pass needs has not been added.
  bool add(int replica, int stage, const Pass& pass) {
    const int stages = run_.pipeline, rank = replica * stages + stage, i = pass.micro_batch;
    const bool has_neighbour = pass.is_forward ? stage > 0 : stage + 1 < stages;
    int needs = -1;
    if (has_neighbour) {
      needs = (pass.is_forward ? forward_ : backward_)[slot(replica, stage + (pass.is_forward ? -1 : 1), i)];
      if (needs < 0) return false;
    }
    const bool is_last = stage + 1 == stages;
    const double head = !is_last ? 0 : pass.is_forward ? pieces_.head_forward_us : pieces_.head_backward_us;
    const double whole = layers() * (pass.is_forward ? pieces_.layer.forward_us : pieces_.layer.backward_us) + head;
    std::string name = base::format("{}[{}]", pass.is_forward ? "forward" : "backward", i);
    int& done = (pass.is_forward ? forward_ : backward_)[slot(replica, stage, i)];
    if (!pass.is_forward && i + 1 == run_.micro_batches) {
      done = last_backward(replica, stage, head, needs);
    } else {
      done = compute(replica, rank, std::move(name), whole, {needs});
    }
    const bool sends = pass.is_forward ? !is_last : stage > 0;
    if (sends && run_.pipeline > 1)
      done = step_.add({.name = base::format("send_{}[{}]", pass.is_forward ? "forward" : "backward", i),
                        .rank = rank,
                        .lane = kLocalLane,
                        .us = pieces_.shift_us,
                        .load = kTransfer},
                       {done});
    return true;
  }

  /// Layer by layer: the gradients of a layer are complete behind it. Then the optimizer.
  int last_backward(int replica, int stage, double head, int needs) {
    const int rank = replica * run_.pipeline + stage;
    std::vector<int> products;
    for (int layer = layers() - 1; layer >= 0; --layer) {
      const bool is_first = products.empty();
      products.push_back(compute(replica, rank, base::format("backward[{}] layer {}", run_.micro_batches - 1, layer),
                                 pieces_.layer.backward_us + (is_first ? head : 0), {is_first ? needs : -1}));
    }
    int reduced = -1;
    for (size_t i = 0; has_gradients_ && i < products.size(); ++i)
      reduced = step_.add({.name = "all_reduce",
                           .rank = rank,
                           .lane = kNetLane,
                           .us = pieces_.gradient_us,
                           .group = groups_[static_cast<size_t>(stage * layers()) + i],
                           .load = kTransfer},
                          {run_.overlaps_gradients ? products[i] : products.back()});
    compute(replica, rank, "optimizer", pieces_.optimizer_us, {reduced});
    return products.back();
  }

  const TransformerModel& model_;
  const TransformerRun& run_;
  const Pieces& pieces_;
  bool has_gradients_;
  int replicas_;
  Step step_;
  std::vector<int> forward_, backward_, groups_;
};

}  // namespace

double TransformerModel::parameters() const {
  const auto h = static_cast<double>(hidden), kv = h * kv_heads / heads;
  return h * (2 * h + 2 * kv) + (is_gated ? 3 : 2) * h * static_cast<double>(intermediate);
}

base::Result<TransformerTime> transformer_step(const TransformerModel& model, const TransformerRun& run,
                                               const spec::Machine& machine, const Network& network,
                                               base::Trace* timeline) {
  OVERLACE_TRY(check_transformer_run(model, run, machine, network));
  TransformerTime out;
  out.replicas = network.ranks / (run.tensor * run.pipeline);
  LayerSteps layer(model, run, machine, network);
  const base::Result<LayerTime> layer_time = layer.time();
  if (!layer_time.ok()) return layer_time.status();
  Pieces pieces;
  pieces.layer = out.layer = *layer_time;
  const int64_t own = base::ceil_div(model.vocabulary, run.tensor);
  pieces.head_forward_us = layer.gemm_us(layer.tokens(), own, model.hidden);
  pieces.head_backward_us = 2 * pieces.head_forward_us;
  const double parameters = model.parameters() / run.tensor;
  pieces.optimizer_us = spec::reduce_us(machine, kOptimizerBytes * parameters * model.layers / run.pipeline) +
                        machine.latency.launch_us.value;
  const bool has_gradients = out.replicas > 1 && !run.is_ideal;
  if (has_gradients) {
    const auto bytes = static_cast<uint64_t>(kGradientBytes * parameters);
    const auto us = best_collective(Collective::all_reduce, network, bytes, {}, {run.tensor, out.replicas});
    if (!us.ok()) return us.status();
    pieces.gradient_us = us->us;
  }
  if (run.pipeline > 1 && !run.is_ideal) {
    const auto bytes = static_cast<uint64_t>(layer.whole_bytes() / run.tensor);
    const base::Result<double> us = shift_us(network, run.tensor * out.replicas, bytes);
    if (!us.ok()) return us.status();
    pieces.shift_us = *us;
  }
  for (const bool is_whole : {false, true}) {  // without all-reduces first: what they add is exposed
    StageSteps stages(model, run, pieces, is_whole && has_gradients);
    const Step& step = stages.build();
    const base::Result<StepTime> time = step.run(machine.contention);
    if (!time.ok()) return time.status();
    if (!is_whole) out.gradient_exposed_us = -time->us;
    if (!is_whole) continue;
    out.gradient_exposed_us += time->us;
    out.step_us = time->us;
    out.bound_us = time->bound_us;
    out.compute_us = time->compute_us;
    if (timeline != nullptr) *timeline = step.to_trace(*time, "transformer step, simulated");
  }
  const double of_stage = static_cast<double>(model.layers) / run.pipeline;
  const double pass = of_stage * (out.layer.forward_us + out.layer.backward_us);
  out.bubble_us = (run.pipeline - 1) * pass;
  out.optimizer_us = pieces.optimizer_us;
  out.gradient_us = pieces.gradient_us * of_stage;
  const double micro_tokens = static_cast<double>(layer.tokens()) * run.micro_batches;
  const double attention = 4.0 * static_cast<double>(model.sequence) * static_cast<double>(model.hidden);
  out.tokens = micro_tokens * out.replicas;
  out.flops = 3 * micro_tokens *
              ((2 * model.parameters() + attention) * of_stage +
               2.0 * static_cast<double>(model.vocabulary * model.hidden) / run.pipeline) /
              run.tensor;
  return out;
}

}  // namespace overlace::study
