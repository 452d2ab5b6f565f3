// What a call of the layer must be like, on whatever backend. Messages name argument, value got, value wanted and rank.
#pragma once

#include <string>
#include <string_view>

#include "overlace/ops/moe.h"
#include "src/ops/common/check.h"
#include "src/ops/moe/experts.h"
#include "src/ops/moe/route.h"

namespace overlace::ops::moe {

base::Status check_dtype(const Site& site, const Named& t, DType want);
/// (experts, rows, cols): each matrix as check_matrix, any stride between them.
base::Status check_stack(const Site& site, const Named& t, int64_t experts, int64_t rows, int64_t cols);

/// Placement::begin: `given`, or floor(r E / R) where it is empty.
std::vector<int64_t> begin_of(const std::vector<int64_t>& given, int64_t num_experts, int ranks);
/// Whose experts are where; `expert_begin` may be empty.
base::Status check_experts(const Site& site, int64_t num_experts, const std::vector<int64_t>& expert_begin, int ranks,
                           Placement* placement);
/// All arguments but what stands in idx. `result`: what is written, with a row for each token.
base::Status check_call(const Site& site, const MoeArgs& args, int ranks, const Named& result, Placement* placement,
                        Experts* experts);
/// What gradients have beyond their layer, whose arguments were checked with dx as the result.
base::Status check_gradients(const Site& site, const MoeGradArgs& args, int64_t local);
/// Whether there is such a MoeSpec::family.
bool is_family(std::string_view name);
/// What must be equal on all ranks.
std::string words_of(const MoeArgs& args, const Placement& placement);

}  // namespace overlace::ops::moe
