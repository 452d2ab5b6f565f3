// The operators that schedules are made for, and what their products add up.
#pragma once

#include <algorithm>
#include <string_view>
#include <vector>

#include "overlace/schedule.h"

namespace overlace::spec {

inline constexpr std::string_view kOperators = "ag_gemm, ag_wgrad, gemm_rs or gemm_ar";

inline bool is_operator(std::string_view op) {
  return op == "ag_gemm" || op == "ag_wgrad" || op == "gemm_rs" || op == "gemm_ar";
}
/// Rows of A travel before the product, which each rank has for itself; of the others, sums travel behind it.
inline bool gathers(std::string_view op) { return op == "ag_gemm" || op == "ag_wgrad"; }

inline bool has_empty_shard(const OpSpec& op) {
  const std::vector<int64_t> off = row_offsets(op);
  return std::adjacent_find(off.begin(), off.end()) != off.end();
}

/// Of a gemm task: its a is stored (depth, rows), so the sum is over rows of the region.
inline bool sums_rows(const Task& task) {
  const auto it = task.params.find("a_layout");
  return it != task.params.end() && it->second == Param(std::string("km"));
}

/// Parameter "activation" of a schedule, or of the task that applies it.
inline Activation activation_of(const Params& params) {
  const auto it = params.find("activation");
  return it != params.end() && it->second == Param(std::string("swiglu")) ? Activation::swiglu : Activation::none;
}
/// Columns of sums that become one of the result.
inline int64_t columns_per_result(const Params& params) { return activation_of(params) == Activation::swiglu ? 2 : 1; }

}  // namespace overlace::spec
