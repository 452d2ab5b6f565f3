// The stack in fp64 on whole matrices, without shards, operators or devices: what Stack is compared with.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <numbers>
#include <optional>
#include <span>
#include <utility>

#include "src/base/half.h"
#include "src/model/expert_choice.h"
#include "src/model/oracle_math.h"
#include "src/model/rope.h"
#include "src/model/sharding.h"
#include "src/model/stack.h"
#include "src/model/weights.h"

namespace overlace::model {
namespace {

using base::Result;
using base::Status;
using Matrix = std::vector<double>;

size_t size(int64_t n) { return static_cast<size_t>(n); }

double activate(Activation kind, double x) {
  switch (kind) {
    case Activation::swiglu:
      return x / (1 + std::exp(-x));
    case Activation::gelu_tanh:
      return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
    case Activation::gelu_erf:
      return 0.5 * x * (1 + std::erf(x / std::numbers::sqrt2));
    case Activation::relu:
      return x > 0 ? x : 0;
  }
  return x;
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

class Oracle {
 public:
  Oracle(const ModelConfig& config, const Problem& problem, Weights& weights, OracleMath& math, int threads,
         std::stop_token stop, const std::vector<int32_t>& given)
      : config_(config),
        problem_(problem),
        weights_(weights),
        math_(math),
        threads_(threads),
        stop_(std::move(stop)),
        given_(given) {}

  Status layer(int64_t index, Matrix& x) {
    layer_ = index;
    const int64_t q_cols = config_.heads * config_.head_dim, kv_cols = config_.kv_heads * config_.head_dim;
    Matrix h, q, k, v, o;
    OVERLACE_TRY(norm(x, Weight::norm1, Weight::norm1_bias, h));
    OVERLACE_TRY(project(h, Weight::q, Weight::q_bias, q));
    OVERLACE_TRY(project(h, Weight::k, Weight::k_bias, k));
    OVERLACE_TRY(project(h, Weight::v, Weight::v_bias, v));
    OVERLACE_TRY(position_heads(q, q_cols, Weight::q_norm));
    OVERLACE_TRY(position_heads(k, kv_cols, Weight::k_norm));
    h.resize(q.size());
    OVERLACE_TRY(math_.attention({q.data(), k.data(), v.data(), h.data(), problem_.tokens, problem_.sequence_length,
                                  config_.heads, config_.kv_heads, config_.head_dim, config_.sliding_window}));
    OVERLACE_TRY(project(h, Weight::o, Weight::o_bias, o));
    for (size_t i = 0; i < x.size(); ++i) x[i] += o[i];
    OVERLACE_TRY(norm(x, Weight::norm2, Weight::norm2_bias, h));
    OVERLACE_TRY(config_.has_experts(index) ? expert_block(h, o) : mlp(h, kDense, o));
    for (size_t i = 0; i < x.size(); ++i) x[i] += o[i];
    return {};
  }

  /// For Part::moe: sum += what the block of experts gives.
  Status experts_alone(int64_t index, const Matrix& h, Matrix& sum) {
    layer_ = index;
    Matrix out;
    OVERLACE_TRY(expert_block(h, out));
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += out[i];
    return {};
  }

  double gap() const { return gap_; }

 private:
  struct Mlp {
    Weight gate, up, down;
    std::optional<Weight> gate_bias, up_bias, down_bias;
  };
  static constexpr Mlp kDense{Weight::gate,      Weight::up,      Weight::down,
                              Weight::gate_bias, Weight::up_bias, Weight::down_bias};
  static constexpr Mlp kShared{Weight::shared_gate, Weight::shared_up, Weight::shared_down, {}, {}, {}};

  Status mlp(const Matrix& h, const Mlp& w, Matrix& o) {
    Matrix up, gate;
    OVERLACE_TRY(project(h, w.up, w.up_bias, up));
    if (config_.gated()) {
      OVERLACE_TRY(project(h, w.gate, w.gate_bias, gate));
      for (size_t i = 0; i < up.size(); ++i) up[i] *= activate(config_.activation, gate[i]);
    } else {
      for (double& value : up) value = activate(config_.activation, value);
    }
    return project(up, w.down, w.down_bias, o);
  }

  /// The shared expert's part, of every token.
  Status add_shared_expert(const Matrix& h, Matrix& out) {
    Matrix y, logits;
    const bool is_gated = config_.experts.is_shared_gated;
    if (is_gated) OVERLACE_TRY(project(h, Weight::shared_router, {}, logits));
    OVERLACE_TRY(mlp(h, kShared, y));
    for (size_t i = 0; i < out.size(); ++i)
      out[i] += is_gated ? y[i] * sigmoid(logits[i / size(config_.hidden)]) : y[i];
    return {};
  }

  /// One expert after the other, on its tokens only.
  Status expert_block(const Matrix& h, Matrix& out) {
    const int64_t count = config_.experts.count, inner = config_.experts.intermediate, hidden = config_.hidden;
    Matrix shares;  // (tokens, experts), 0 where a token does not go
    OVERLACE_TRY(route(h, shares));
    out.assign(h.size(), 0.0);
    for (int64_t e = 0; e < count; ++e) {
      std::vector<int64_t> rows;
      for (int64_t t = 0; t < problem_.tokens; ++t)
        if (shares[size(t * count + e)] != 0) rows.push_back(t);
      if (rows.empty()) continue;
      const auto n = static_cast<int64_t>(rows.size());
      Matrix in, both, act(size(n * inner)), y;
      for (const int64_t t : rows) in.insert(in.end(), h.begin() + t * hidden, h.begin() + (t + 1) * hidden);
      OVERLACE_TRY(multiply(in, Weight::expert_up, {e * 2 * inner, 2 * inner, 0, hidden}, both));
      for (int64_t i = 0; i < n * inner; ++i) {
        const double* row = both.data() + i / inner * 2 * inner;
        act[size(i)] = activate(config_.activation, row[i % inner]) * row[inner + i % inner];
      }
      OVERLACE_TRY(multiply(act, Weight::expert_down, {e * hidden, hidden, 0, inner}, y));
      for (int64_t i = 0; i < n * hidden; ++i) {
        const int64_t t = rows[size(i / hidden)];
        out[size(t * hidden + i % hidden)] += shares[size(t * count + e)] * y[size(i)];
      }
    }
    return config_.experts.shared > 0 ? add_shared_expert(h, out) : Status();
  }

  /// Weights of the experts of each token: of those given, else of those with the largest keys.
  Status route(const Matrix& h, Matrix& shares) {
    const Experts& experts = config_.experts;
    const auto count = size(experts.count), k = size(experts.per_token), tokens = size(problem_.tokens);
    Matrix logits, bias;
    OVERLACE_TRY(project(h, Weight::router, {}, logits));
    OVERLACE_TRY(weight(Weight::router_bias, bias));
    double squares = 0;
    for (const double value : logits) squares += value * value;
    const double rms = std::sqrt(squares / static_cast<double>(logits.size()));
    shares.assign(logits.size(), 0.0);
    for (size_t t = 0; t < tokens; ++t) {
      const std::span<const double> of(logits.data() + t * count, count);
      const Matrix keys = keys_of(of, bias);
      std::vector<int32_t> chosen;
      if (given_.empty()) {
        chosen = best_experts(keys, experts);
      } else {
        const auto first = given_.begin() + static_cast<std::ptrdiff_t>((size(layer_) * tokens + t) * k);
        chosen.assign(first, first + static_cast<std::ptrdiff_t>(k));
      }
      const double gap = in_logits(choice_gap(keys, chosen, experts), keys) / rms;
      gap_ = std::max(gap_, gap);
      if (std::isinf(gap)) continue;
      const Matrix scores = scores_of(of);
      double sum = 0;
      for (const int32_t e : chosen) sum += scores[size(e)];
      sum = experts.renormalize ? sum + 1e-20 : 1;  // as the router: a bias may choose scores that are nearly 0
      for (const int32_t e : chosen) shares[t * count + size(e)] = scores[size(e)] / sum * experts.scale;
    }
    return {};
  }

  Matrix scores_of(std::span<const double> logits) const {
    Matrix out(logits.begin(), logits.end());
    if (config_.experts.scores == Scores::sigmoid) {
      for (double& value : out) value = sigmoid(value);
      return out;
    }
    const double largest = *std::max_element(out.begin(), out.end());
    double sum = 0;
    for (double& value : out) sum += value = std::exp(value - largest);
    for (double& value : out) value /= sum;
    return out;
  }

  /// What a choice is by. The largest softmax scores are those of the largest logits.
  Matrix keys_of(std::span<const double> logits, const Matrix& bias) const {
    if (config_.experts.scores == Scores::softmax) return Matrix(logits.begin(), logits.end());
    Matrix out = scores_of(logits);
    for (size_t e = 0; e < bias.size(); ++e) out[e] += bias[e];
    return out;
  }

  /// A gap of keys as one of the logits behind them, of which a sigmoid keeps a quarter at most. Keys are held in fp32:
  /// both may be off by the rounding of a sigmoid, of its sum with the bias and of a group's sum, which is two ulps of
  /// the largest each.
  double in_logits(double gap, const Matrix& keys) const {
    if (config_.experts.scores == Scores::softmax) return gap;
    double largest = 0;
    for (const double key : keys) largest = std::max(largest, std::abs(key));
    return 4 * std::max(gap - 0x1p-21 * largest, 0.0);
  }

  /// A part of a weight as the problem's dtype has it, until the next call.
  Result<const char*> stored(Weight which, const WeightBox& shape) {
    if (stop_.stop_requested()) return base::error(Errc::aborted, "oracle: stopped by its caller");
    const DType dtype = weight_dtype(which, problem_.dtype);
    const auto row_bytes = shape.cols * static_cast<int64_t>(dtype_bytes(dtype));
    const size_t bytes = size(shape.rows * row_bytes);
    if (bytes > stored_bytes_) {
      stored_ = std::make_unique_for_overwrite<char[]>(bytes);
      stored_bytes_ = bytes;
    }
    if (!weights_.is_seeded()) {
      OVERLACE_TRY(weights_.read(layer_, which, shape, stored_.get()));
      return stored_.get();
    }
    const SeededMatrix made = weights_.seeded(layer_, which, shape);
    parallel_for(shape.rows, threads_, [&](int64_t begin, int64_t end) {
      SeededMatrix part = made;
      part.first_row += begin;
      fill_seeded(part, end - begin, shape.cols, dtype, stored_.get() + begin * row_bytes);
    });
    return stored_.get();
  }

  /// A vector, whole; empty if the model has none.
  Status weight(Weight which, Matrix& out) {
    out.clear();
    if (!has_weight(config_, which, layer_)) return {};
    const WeightBox shape = weight_shape(config_, which);
    const auto values = stored(which, shape);
    if (!values.ok()) return values.status();
    out.resize(size(shape.rows * shape.cols));
    for (size_t i = 0; i < out.size(); ++i)
      out[i] = base::load_element(*values, weight_dtype(which, problem_.dtype), static_cast<int64_t>(i));
    return {};
  }

  /// out (rows of `in`, rows of the part) = in w^T.
  Status multiply(const Matrix& in, Weight which, const WeightBox& part, Matrix& out) {
    const auto values = stored(which, part);
    if (!values.ok()) return values.status();
    const int64_t rows = static_cast<int64_t>(in.size()) / part.cols;
    out.assign(size(rows * part.rows), 0.0);
    return math_.gemm(in.data(), *values, weight_dtype(which, problem_.dtype), out.data(), rows, part.rows, part.cols);
  }

  Status project(const Matrix& in, Weight which, std::optional<Weight> which_bias, Matrix& out) {
    Matrix bias;
    if (which_bias) OVERLACE_TRY(weight(*which_bias, bias));
    OVERLACE_TRY(multiply(in, which, weight_shape(config_, which), out));
    for (size_t i = 0; i < out.size() && !bias.empty(); ++i) out[i] += bias[i % bias.size()];
    return {};
  }

  Status norm(const Matrix& x, Weight which, Weight which_bias, Matrix& out) {
    Matrix scale, shift;
    OVERLACE_TRY(weight(which, scale));
    OVERLACE_TRY(weight(which_bias, shift));
    out.resize(x.size());
    const size_t n = scale.size();
    for (size_t row = 0; row < x.size(); row += n) {
      double mean = 0, square = 0;
      if (config_.norm == Norm::layer) {
        for (size_t i = 0; i < n; ++i) mean += x[row + i];
        mean /= static_cast<double>(n);
      }
      for (size_t i = 0; i < n; ++i) square += (x[row + i] - mean) * (x[row + i] - mean);
      const double root = std::sqrt(square / static_cast<double>(n) + config_.norm_eps);
      for (size_t i = 0; i < n; ++i)
        out[row + i] = (x[row + i] - mean) / root * scale[i] + (shift.empty() ? 0.0 : shift[i]);
    }
    return {};
  }

  /// Norm of each head and rotation, in place.
  Status position_heads(Matrix& x, int64_t cols, Weight which_norm) {
    Matrix scale;
    OVERLACE_TRY(weight(which_norm, scale));
    const size_t dim = size(config_.head_dim), half = dim / 2;
    std::vector<float> frequencies;
    if (config_.positions == Positions::rope) frequencies = rope_frequencies(config_);
    for (size_t at = 0; at < x.size(); at += dim) {
      if (!scale.empty()) {
        double square = 0;
        for (size_t i = 0; i < dim; ++i) square += x[at + i] * x[at + i];
        const double root = std::sqrt(square / static_cast<double>(dim) + config_.norm_eps);
        for (size_t i = 0; i < dim; ++i) x[at + i] *= scale[i] / root;
      }
      const int64_t position = static_cast<int64_t>(at) / cols % problem_.sequence_length;
      for (size_t i = 0; i < frequencies.size(); ++i) {
        const double angle = static_cast<double>(rope_angle(frequencies[i], position));
        const double a = x[at + i], b = x[at + i + half];
        x[at + i] = a * std::cos(angle) - b * std::sin(angle);
        x[at + i + half] = a * std::sin(angle) + b * std::cos(angle);
      }
    }
    return {};
  }

  const ModelConfig& config_;
  const Problem& problem_;
  Weights& weights_;
  OracleMath& math_;
  int threads_;
  std::stop_token stop_;
  int64_t layer_ = 0;
  const std::vector<int32_t>& given_;
  double gap_ = 0;
  std::unique_ptr<char[]> stored_;  // room for the largest part so far
  size_t stored_bytes_ = 0;
};

Result<std::unique_ptr<OracleMath>> make_math(int device, int threads, const std::stop_token& stop) {
  if (device < 0) return make_cpu_oracle_math(threads, stop);
#ifdef OVERLACE_HAS_CUDA
  return make_cuda_oracle_math(device);
#else
  return base::error(Errc::not_supported, "oracle: device {} was asked, but this build has no CUDA", device);
#endif
}

}  // namespace

Result<std::vector<double>> oracle(const ModelConfig& config, const Problem& problem, const std::vector<float>& input,
                                   int device, int threads, std::stop_token stop, ExpertChoices* choices,
                                   std::atomic<int64_t>* layers_done) {
  const auto whole = make_shard(config, problem, 0, 1);
  if (!whole.ok()) return whole.status();
  if (static_cast<int64_t>(input.size()) != problem.tokens * config.hidden)
    return base::invalid_argument("oracle: the input has {} elements, wanted {} tokens x {}", input.size(),
                                  problem.tokens, config.hidden);
  const std::vector<int32_t> none;
  const std::vector<int32_t>& given = choices == nullptr ? none : choices->experts;
  const int64_t wanted = problem.layers * problem.tokens * config.experts.per_token;
  if (!given.empty() && static_cast<int64_t>(given.size()) != wanted)
    return base::invalid_argument("oracle: there are {} choices of experts, wanted {}", given.size(), wanted);
  auto math = make_math(device, threads, stop);
  if (!math.ok()) return math.status();
  auto weights = Weights::open(config, problem);
  if (!weights.ok()) return weights.status();
  try {
    std::vector<double> x(input.size());
    char rounded[8];
    for (size_t i = 0; i < x.size(); ++i) {
      base::store_element(rounded, problem.dtype, 0, static_cast<double>(input[i]));
      x[i] = base::load_element(rounded, problem.dtype, 0);
    }
    Oracle run(config, problem, *weights, **math, threads, stop, given);
    std::vector<double> sum(config.has_attention() ? 0 : x.size());
    for (int64_t layer = 0; layer < problem.layers; ++layer) {
      OVERLACE_TRY(config.has_attention() ? run.layer(layer, x) : run.experts_alone(layer, x, sum));
      if (layers_done != nullptr) *layers_done = layer + 1;
    }
    if (choices != nullptr) choices->gap = run.gap();
    return config.has_attention() ? x : sum;
  } catch (...) {
    return base::status_of_current_exception();
  }
}

}  // namespace overlace::model
