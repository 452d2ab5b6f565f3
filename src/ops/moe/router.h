// The router of a mixture-of-experts layer on the host: which experts a token goes to, and with which weights.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "overlace/tensor.h"
#include "src/base/status.h"

namespace overlace::ops::moe {

inline constexpr int kMostChoices = 32;  // of a token

/// An offset as an index.
constexpr size_t at(int64_t i) { return static_cast<size_t>(i); }

enum class Score { softmax, sigmoid };

struct RouterOptions {
  int top_k = 1;                 // experts of a token, 1 to 32
  Score score = Score::softmax;  // of a logit; softmax over all experts
  bool renormalize = false;      // divide weights by their sum over the chosen experts + 1e-20
  int num_groups = 1;            // E / num_groups experts each
  int kept_groups = 1;           // experts of the groups with the largest sums of their two best keys are chosen among
  float route_scale = 1;         // factor of all weights
};

/// The experts that each token chose, by descending key; equal keys by ascending expert.
struct Choices {
  int top_k = 1;
  std::vector<int32_t> experts{};  // (T, k); -1: none
  std::vector<float> weights{};    // (T, k); of no expert: 0
  int64_t nan_tokens = 0;          // tokens with a logit that is not a number
  int64_t tokens() const { return static_cast<int64_t>(experts.size()) / top_k; }
};

/// Chooses by `logits` (T, E). `bias` (E, or empty) is added to the scores for the choice, not for the weights. An
/// expert whose logit or key is not finite is never chosen; where fewer than k are left, the last entries are -1. Pure
/// and deterministic. InvalidArgument where an option does not fit E.
base::Result<Choices> choose_experts(std::span<const float> logits, int64_t num_experts, std::span<const float> bias,
                                     const RouterOptions& options);
/// The logits x w_gate^T, in fp32: x (T, H), w_gate (E, H), one dtype of fp32, bf16 and fp16.
base::Result<std::vector<float>> router_logits(const TensorView& x, const TensorView& w_gate);

}  // namespace overlace::ops::moe
