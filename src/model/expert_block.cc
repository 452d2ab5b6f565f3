#include "src/model/expert_block.h"

#include <cmath>
#include <functional>
#include <vector>

#include "overlace/ops/moe.h"
#include "src/base/half.h"
#include "src/exec/gemm.h"
#include "src/exec/run.h"
#include "src/ops/moe/experts.h"

namespace overlace::model {
namespace {

using base::Status;
using ops::moe::Rows;

/// A matrix as a stack of one.
TensorView stack_of(const TensorView& matrix) {
  return TensorView::contiguous(matrix.data, matrix.dtype, {1, matrix.dim(0), matrix.dim(1)});
}

/// Rows that are all of one expert.
ops::moe::PoolLayout one_expert(int64_t rows) { return {.base = {0, rows}, .load = {rows}, .first = {0}}; }

/// out = sums + g (act(x gate^T) (x up^T)) down^T, where g is sigmoid(x router^T), or 1 without that router.
Status add_shared_expert(const LayerWeights& w, const TensorView& x, Rows& sums, const TensorView& out) {
  const int64_t rows = x.dim(0), hidden = x.dim(1);
  if (rows == 0) return {};
  std::vector<float> weights(static_cast<size_t>(rows), 1.0f);
  if (w.shared_router.defined()) {
    const TensorView logits = TensorView::contiguous(weights.data(), DType::fp32, {rows, 1});
    OVERLACE_TRY(exec::cpu_gemm({.a = x, .b = w.shared_router.transposed(), .c = logits}));
    for (float& weight : weights) weight = 1 / (1 + std::exp(-weight));
  }
  const ops::moe::Experts shared{.w1 = stack_of(w.shared_up), .w2 = stack_of(w.shared_down)};
  base::Result<Rows> y = ops::moe::run_experts(shared, one_expert(rows), x, weights);
  if (!y.ok()) return y.status();
  std::vector<float> more(static_cast<size_t>(hidden));
  for (int64_t row = 0; row < rows; ++row) {
    auto* const sum = reinterpret_cast<float*>(sums.row(row));
    base::convert_to_float(y->row(row), x.dtype, more.data(), hidden);
    for (size_t i = 0; i < more.size(); ++i) sum[i] += more[i];
    base::convert_from_float(sum, out.rows(row, 1).data, out.dtype, hidden);
  }
  return {};
}

/// What `work` throws becomes a status.
Status traced(Channel& channel, const char* name, const std::function<void()>& work) {
  return exec::run_traced(channel, name, [&] {
    try {
      work();
      return Status();
    } catch (...) {
      return base::status_of_current_exception();
    }
  });
}

}  // namespace

base::Result<int64_t> run_expert_block(Channel& channel, const ModelConfig& config, const Shard& shard,
                                       const LayerWeights& w, const ExpertBlockArgs& args) {
  const Experts& experts = config.experts;
  const int64_t rows = args.x.dim(0), k = experts.per_token;
  const DType dtype = args.x.dtype;
  std::vector<float> weights(static_cast<size_t>(rows * k));
  Rows sums(DType::fp32, experts.shared > 0 ? rows : 0, config.hidden);
  ops::MoeRouterArgs router;
  router.x = args.x;
  router.w_gate = w.router;
  router.idx = TensorView::contiguous(args.chosen, DType::i32, {rows, k});
  router.weights = TensorView::contiguous(weights.data(), DType::fp32, {rows, k});
  if (experts.has_bias) router.bias = TensorView::contiguous(w.router_bias.data, DType::fp32, {experts.count});
  router.score = experts.scores == Scores::sigmoid ? "sigmoid" : "softmax";
  router.renormalize = experts.renormalize;
  router.num_groups = static_cast<int>(experts.groups);
  router.kept_groups = static_cast<int>(experts.kept_groups);
  router.route_scale = experts.scale;
  OVERLACE_TRY(traced(channel, "router", [&] { ops::choose_experts(router); }));
  ops::MoeArgs moe;
  moe.x = args.x;
  moe.idx = router.idx;
  moe.weights = router.weights;
  moe.w1 = TensorView::contiguous(w.expert_up.data, dtype, {shard.experts, 2 * experts.intermediate, config.hidden});
  moe.w2 = TensorView::contiguous(w.expert_down.data, dtype, {shard.experts, config.hidden, experts.intermediate});
  moe.out = experts.shared > 0 ? sums.view() : args.out;
  moe.num_experts = experts.count;
  int64_t copies = 0;
  OVERLACE_TRY(traced(channel, "experts and exchange", [&] {
    for (const int64_t load : ops::run(channel, moe).load) copies += load;
  }));
  if (experts.shared > 0)
    OVERLACE_TRY(
        exec::run_traced(channel, "shared expert", [&] { return add_shared_expert(w, args.x, sums, args.out); }));
  return copies;
}

}  // namespace overlace::model
