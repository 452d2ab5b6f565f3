#include "src/ops/moe/router.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "overlace/ops/moe.h"
#include "src/base/half.h"
#include "src/exec/gemm_reference.h"

namespace overlace::ops::moe {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

base::Status check_choice(std::span<const float> logits, int64_t num_experts, std::span<const float> bias,
                          const RouterOptions& o) {
  if (num_experts < 1) return base::invalid_argument("choose_experts: {} experts, wanted 1 or more", num_experts);
  if (logits.size() % at(num_experts) != 0)
    return base::invalid_argument("choose_experts: {} logits, wanted a multiple of the {} experts", logits.size(),
                                  num_experts);
  if (!bias.empty() && bias.size() != at(num_experts))
    return base::invalid_argument("choose_experts: bias has {} entries, wanted {}, one of each expert", bias.size(),
                                  num_experts);
  if (o.num_groups < 1 || num_experts % o.num_groups != 0)
    return base::invalid_argument("choose_experts: num_groups is {}, wanted a divisor of the {} experts", o.num_groups,
                                  num_experts);
  if (o.kept_groups < 1 || o.kept_groups > o.num_groups)
    return base::invalid_argument("choose_experts: kept_groups is {}, wanted 1 to the {} groups", o.kept_groups,
                                  o.num_groups);
  const int64_t eligible = num_experts / o.num_groups * o.kept_groups;
  if (o.top_k < 1 || o.top_k > std::min<int64_t>(kMostChoices, eligible))
    return base::invalid_argument(
        "choose_experts: top_k is {}, wanted 1 to {} (at most {}, of {} experts in {} groups)", o.top_k,
        std::min<int64_t>(kMostChoices, eligible), kMostChoices, eligible, o.kept_groups);
  return {};
}

/// Scores of one token; 0 where the logit is not finite.
void score_token(std::span<const float> logits, Score kind, std::span<float> scores) {
  float largest = kNever;
  for (const float logit : logits)
    if (std::isfinite(logit)) largest = std::max(largest, logit);
  float sum = 0;
  for (size_t e = 0; e < logits.size(); ++e) {
    if (!std::isfinite(logits[e]))
      scores[e] = 0;
    else
      scores[e] = kind == Score::softmax ? std::exp(logits[e] - largest) : 1 / (1 + std::exp(-logits[e]));
    sum += scores[e];
  }
  if (kind == Score::softmax && sum > 0)
    for (float& score : scores) score /= sum;
}

/// The first `count` of `ids` by descending key, equal keys by ascending id.
void take_best(std::vector<int32_t>& ids, size_t count, std::span<const float> keys) {
  const auto before = [&](int32_t a, int32_t b) {
    return keys[at(a)] != keys[at(b)] ? keys[at(a)] > keys[at(b)] : a < b;
  };
  std::partial_sort(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(count), ids.end(), before);
  ids.resize(count);
}

/// Keys of experts outside the kept groups become kNever.
void limit_groups(std::span<float> keys, const RouterOptions& o) {
  const size_t size = keys.size() / at(o.num_groups);
  std::vector<float> sums(at(o.num_groups));
  for (size_t g = 0; g < sums.size(); ++g) {
    float best = kNever, second = kNever;
    for (size_t e = g * size; e < (g + 1) * size; ++e) {
      second = std::max(second, std::min(best, keys[e]));
      best = std::max(best, keys[e]);
    }
    sums[g] = second == kNever ? best : best + second;
  }
  std::vector<int32_t> groups(sums.size());
  std::iota(groups.begin(), groups.end(), 0);
  take_best(groups, at(o.kept_groups), sums);
  std::vector<char> is_kept(sums.size());
  for (const int32_t g : groups) is_kept[at(g)] = 1;
  for (size_t e = 0; e < keys.size(); ++e)
    if (is_kept[e / size] == 0) keys[e] = kNever;
}

}  // namespace

base::Result<Choices> choose_experts(std::span<const float> logits, int64_t num_experts, std::span<const float> bias,
                                     const RouterOptions& options) {
  OVERLACE_TRY(check_choice(logits, num_experts, bias, options));
  const size_t experts = at(num_experts), k = at(options.top_k);
  Choices out{.top_k = options.top_k};
  std::vector<float> scores(experts), keys(experts);
  std::vector<int32_t> ids;
  for (size_t t = 0; t < logits.size() / experts; ++t) {
    const std::span<const float> mine = logits.subspan(t * experts, experts);
    score_token(mine, options.score, scores);
    for (size_t e = 0; e < experts; ++e) {
      keys[e] = bias.empty() ? scores[e] : scores[e] + bias[e];
      if (!std::isfinite(mine[e]) || !std::isfinite(keys[e])) keys[e] = kNever;
    }
    out.nan_tokens += std::any_of(mine.begin(), mine.end(), [](float logit) { return std::isnan(logit); }) ? 1 : 0;
    if (options.kept_groups < options.num_groups) limit_groups(keys, options);
    ids.resize(experts);
    std::iota(ids.begin(), ids.end(), 0);
    take_best(ids, k, keys);
    float sum = 0;
    for (int32_t& e : ids) {
      if (keys[at(e)] == kNever)
        e = -1;
      else
        sum += scores[at(e)];
    }
    for (const int32_t e : ids) {
      const float score = e < 0 ? 0 : scores[at(e)];
      out.experts.push_back(e);
      out.weights.push_back((options.renormalize ? score / (sum + 1e-20F) : score) * options.route_scale);
    }
  }
  return out;
}

base::Result<std::vector<float>> router_logits(const TensorView& x, const TensorView& w_gate) {
  const auto is_fine = [](const TensorView& t) {
    return t.ndim == 2 && (t.dtype == DType::fp32 || t.dtype == DType::bf16 || t.dtype == DType::fp16) &&
           (t.dim(0) <= 1 || t.stride(0) == t.dim(1)) && (t.dim(1) <= 1 || t.stride(1) == 1);
  };
  if (!is_fine(x) || !is_fine(w_gate) || x.dim(1) != w_gate.dim(1) || x.dtype != w_gate.dtype)
    return base::invalid_argument(
        "choose_experts: x is {} {} and w_gate {} {}, wanted (T, H) and (E, H), contiguous, both fp32, bf16 or fp16",
        dtype_name(x.dtype), x.shape(), dtype_name(w_gate.dtype), w_gate.shape());
  // By the provider of which a row has the same bits whatever rows stand beside it: with oneDNN one row alone has
  // others on some processors.
  std::vector<float> rows(at(x.numel())), gate(at(w_gate.numel())), logits(at(x.dim(0) * w_gate.dim(0)));
  base::convert_to_float(x.data, x.dtype, rows.data(), x.numel());
  base::convert_to_float(w_gate.data, w_gate.dtype, gate.data(), w_gate.numel());
  if (logits.empty()) return logits;
  exec::reference_gemm(
      {.a = TensorView::contiguous(rows.data(), DType::fp32, {x.dim(0), x.dim(1)}),
       .b = TensorView::contiguous(gate.data(), DType::fp32, {w_gate.dim(0), w_gate.dim(1)}).transposed(),
       .c = TensorView::contiguous(logits.data(), DType::fp32, {x.dim(0), w_gate.dim(0)})});
  return logits;
}

}  // namespace overlace::ops::moe

namespace overlace::ops {
namespace {

base::Status check_dense(const char* name, const TensorView& t, DType dtype, const std::vector<int64_t>& sizes) {
  bool is_fine = t.dtype == dtype && t.ndim == static_cast<int>(sizes.size());
  int64_t stride = 1;
  for (int i = t.ndim - 1; is_fine && i >= 0; stride *= t.dim(i--))
    is_fine = t.dim(i) == sizes[static_cast<size_t>(i)] && (t.dim(i) <= 1 || t.stride(i) == stride);
  if (is_fine) return {};
  std::string wanted;
  for (const int64_t size : sizes) wanted += base::format("{}{}", wanted.empty() ? "" : ", ", size);
  return base::invalid_argument("choose_experts: {} is {} {}, wanted {} ({}), contiguous", name, dtype_name(t.dtype),
                                t.shape(), dtype_name(dtype), wanted);
}

base::Result<moe::Choices> choose(const MoeRouterArgs& args) {
  if (args.score != "softmax" && args.score != "sigmoid")
    return base::invalid_argument("choose_experts: score is \"{}\", wanted softmax or sigmoid", args.score);
  const base::Result<std::vector<float>> logits = moe::router_logits(args.x, args.w_gate);
  if (!logits.ok()) return logits.status();
  const int64_t tokens = args.x.dim(0), experts = args.w_gate.dim(0);
  const int64_t k = args.idx.ndim == 2 ? std::min<int64_t>(args.idx.dim(1), std::numeric_limits<int>::max()) : 0;
  if (args.bias.defined()) OVERLACE_TRY(check_dense("bias", args.bias, DType::fp32, {experts}));
  OVERLACE_TRY(check_dense("idx", args.idx, DType::i32, {tokens, k}));
  OVERLACE_TRY(check_dense("weights", args.weights, DType::fp32, {tokens, k}));
  const auto* const bias = static_cast<const float*>(args.bias.data);
  return moe::choose_experts(*logits, experts, {bias, args.bias.defined() ? static_cast<size_t>(experts) : 0},
                             {.top_k = static_cast<int>(k),
                              .score = args.score == "softmax" ? moe::Score::softmax : moe::Score::sigmoid,
                              .renormalize = args.renormalize,
                              .num_groups = args.num_groups,
                              .kept_groups = args.kept_groups,
                              .route_scale = static_cast<float>(args.route_scale)});
}

}  // namespace

int64_t choose_experts(const MoeRouterArgs& args) {
  const base::Result<moe::Choices> choices = choose(args);
  choices.status().or_throw();
  std::copy(choices->experts.begin(), choices->experts.end(), static_cast<int32_t*>(args.idx.data));
  std::copy(choices->weights.begin(), choices->weights.end(), static_cast<float*>(args.weights.data));
  return choices->nan_tokens;
}

}  // namespace overlace::ops
