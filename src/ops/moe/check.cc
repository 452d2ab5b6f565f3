#include "src/ops/moe/check.h"

#include <algorithm>
#include <cmath>
#include <iterator>

namespace overlace::ops::moe {

base::Status check_dtype(const Site& site, const Named& t, DType want) {
  if (t.view.dtype == want) return {};
  return refuse(site, "{} must be {}, got {}", t.name, dtype_name(want), dtype_name(t.view.dtype));
}

base::Status check_stack(const Site& site, const Named& t, int64_t experts, int64_t rows, int64_t cols) {
  if (t.view.ndim != 3 || t.view.dim(0) != experts || t.view.dim(1) != rows || t.view.dim(2) != cols)
    return refuse(site, "{} must be ({}, {}, {}), of the {} experts of this rank, got {}", t.name, experts, rows, cols,
                  experts, t.view.shape());
  for (int64_t e = 0; e < experts; ++e)
    OVERLACE_TRY(check_matrix(site, {t.name, matrix_of(t.view, e)}, rows, cols, "for each expert"));
  return {};
}

namespace {

constexpr int64_t kMostExperts = 8192;  // their counts fit in one message of Team::exchange

base::Status check_weights(const Site& site, const MoeArgs& args, int64_t local) {
  if (args.w2.ndim != 3) return refuse(site, "w2 must have 3 dimensions (E_loc, H, I), got {}", args.w2.shape());
  const int64_t hidden = args.x.dim(1), inter = args.w2.dim(2);
  if (inter < 1) return refuse(site, "w2 must have columns (E_loc, H, I), got {}", args.w2.shape());
  OVERLACE_TRY(check_same_dtype(site, {"w1", args.w1}, {"x", args.x}));
  OVERLACE_TRY(check_same_dtype(site, {"w2", args.w2}, {"x", args.x}));
  OVERLACE_TRY(check_stack(site, {"w2", args.w2}, local, hidden, inter));
  OVERLACE_TRY(check_stack(site, {"w1", args.w1}, local, args.gated ? 2 * inter : inter, hidden));
  for (const auto& [bias, columns] :
       {std::pair{Named{"b1", args.b1}, inter}, std::pair{Named{"b2", args.b2}, hidden}}) {
    if (!bias.view.defined()) continue;
    if (args.gated) return refuse(site, "{} is {}, wanted none with gated experts", bias.name, bias.view.shape());
    OVERLACE_TRY(check_same_dtype(site, bias, {"x", args.x}));
    OVERLACE_TRY(check_matrix(site, bias, local, columns, "for the experts of this rank"));
  }
  return {};
}

base::Status check_tokens(const Site& site, const MoeArgs& args, const Named& out) {
  const Named x{"x", args.x}, idx{"idx", args.idx}, weights{"weights", args.weights};
  OVERLACE_TRY(check_matrix(site, x, args.x.dim(0), args.x.dim(1), ""));
  if (args.x.dtype != DType::fp32 && args.x.dtype != DType::bf16 && args.x.dtype != DType::fp16)
    return refuse(site, "x must be fp32, bf16 or fp16, got {}", dtype_name(args.x.dtype));
  if (args.x.dim(1) < 1) return refuse(site, "x must have columns, got {}", args.x.shape());
  if (args.idx.ndim == 2 && (args.idx.dim(1) < 1 || args.idx.dim(1) > kMostChoices))
    return refuse(site, "idx must have 1 to {} choices of a token, got {}", kMostChoices, args.idx.shape());
  OVERLACE_TRY(check_dtype(site, idx, DType::i32));
  OVERLACE_TRY(check_dtype(site, weights, DType::fp32));
  OVERLACE_TRY(check_matrix(site, idx, args.x.dim(0), args.idx.dim(1), "as x has rows"));
  OVERLACE_TRY(check_matrix(site, weights, args.x.dim(0), args.idx.dim(1), "as idx is"));
  OVERLACE_TRY(check_matrix(site, out, args.x.dim(0), args.x.dim(1), "as x is"));
  OVERLACE_TRY(check_output_dtype(site, out, x));
  return check_disjoint(site, out,
                        {x, idx, weights, {"w1", args.w1}, {"w2", args.w2}, {"b1", args.b1}, {"b2", args.b2}});
}

}  // namespace

std::vector<int64_t> begin_of(const std::vector<int64_t>& given, int64_t num_experts, int ranks) {
  return given.empty() ? Placement::even(num_experts, ranks).begin : given;
}

base::Status check_experts(const Site& site, int64_t num_experts, const std::vector<int64_t>& expert_begin, int ranks,
                           Placement* placement) {
  if (num_experts < 1 || num_experts > kMostExperts)
    return refuse(site, "num_experts is {}, wanted 1 to {}", num_experts, kMostExperts);
  *placement = Placement{begin_of(expert_begin, num_experts, ranks)};
  if (const base::Status status = placement->check(); !status.ok()) return refuse(site, "{}", status.message());
  if (placement->ranks() != ranks || placement->num_experts() != num_experts)
    return refuse(site, "expert_begin has {} entries up to {}, wanted {} up to the {} experts", expert_begin.size(),
                  expert_begin.back(), ranks + 1, num_experts);
  return {};
}

base::Status check_call(const Site& site, const MoeArgs& args, int ranks, const Named& result, Placement* placement,
                        Experts* experts) {
  OVERLACE_TRY(check_experts(site, args.num_experts, args.expert_begin, ranks, placement));
  const base::Result<Activation> activation = activation_of(args.activation);
  if (!activation.ok()) return refuse(site, "{}", activation.status().message());
  if (!(args.capacity_factor >= 0) || !std::isfinite(args.capacity_factor))
    return refuse(site, "capacity_factor is {}, wanted 0 (dropless) or more", args.capacity_factor);
  OVERLACE_TRY(check_tokens(site, args, result));
  OVERLACE_TRY(check_weights(site, args, placement->local(site.rank)));
  *experts = {.w1 = args.w1,
              .w2 = args.w2,
              .b1 = args.b1,
              .b2 = args.b2,
              .activation = activation.value(),
              .is_gated = args.gated};
  return {};
}

base::Status check_gradients(const Site& site, const MoeGradArgs& args, int64_t local) {
  const MoeArgs& layer = args.layer;
  const Named dy{"dy", args.dy}, dweights{"dweights", args.dweights}, like{"x", layer.x};
  OVERLACE_TRY(check_matrix(site, dy, layer.x.dim(0), layer.x.dim(1), "as x is"));
  OVERLACE_TRY(check_same_dtype(site, dy, like));
  if (args.dweights.defined()) {
    OVERLACE_TRY(check_dtype(site, dweights, DType::fp32));
    OVERLACE_TRY(check_matrix(site, dweights, layer.idx.dim(0), layer.idx.dim(1), "as idx is"));
  }
  const std::vector<Named> given{dy,
                                 like,
                                 {"idx", layer.idx},
                                 {"weights", layer.weights},
                                 {"w1", layer.w1},
                                 {"w2", layer.w2},
                                 {"b1", layer.b1},
                                 {"b2", layer.b2}};
  std::vector<Named> written{{"dx", args.dx}, dweights};
  for (const auto& [grad, weight] :
       {std::pair{Named{"dw1", args.dw1}, layer.w1}, std::pair{Named{"dw2", args.dw2}, layer.w2},
        std::pair{Named{"db1", args.db1}, layer.b1}, std::pair{Named{"db2", args.db2}, layer.b2}}) {
    if (!grad.view.defined()) continue;
    if (!weight.defined()) return refuse(site, "{} is {}, wanted none without its bias", grad.name, grad.view.shape());
    OVERLACE_TRY(check_same_dtype(site, grad, like));
    if (weight.ndim == 3)
      OVERLACE_TRY(check_stack(site, grad, local, weight.dim(1), weight.dim(2)));
    else
      OVERLACE_TRY(check_matrix(site, grad, local, weight.dim(1), "for the experts of this rank"));
    written.push_back(grad);
  }
  for (size_t i = 0; i < written.size(); ++i) {
    OVERLACE_TRY(check_disjoint(site, written[i], given));
    OVERLACE_TRY(
        check_disjoint(site, written[i], {written.begin() + static_cast<std::ptrdiff_t>(i) + 1, written.end()}));
  }
  return {};
}

bool is_family(std::string_view name) {
  constexpr std::string_view kFamilies[] = {"auto", "serial", "fused"};
  return std::find(std::begin(kFamilies), std::end(kFamilies), name) != std::end(kFamilies);
}

std::string words_of(const MoeArgs& args, const Placement& placement) {
  std::string begin;
  for (const int64_t first : placement.begin) begin += base::format(" {}", first);
  return base::format("H {} I {} E {} top {} {} {}{}{}{} capacity {} experts from{}", args.x.dim(1), args.w2.dim(2),
                      args.num_experts, args.idx.dim(1), dtype_name(args.x.dtype), args.gated ? "gated " : "",
                      args.activation, args.b1.defined() ? " b1" : "", args.b2.defined() ? " b2" : "",
                      args.capacity_factor, begin);
}

}  // namespace overlace::ops::moe
