// What is asked of operators by name, answered by their values, and of tasks.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "overlace/operator.h"

namespace overlace::spec {

/// "ag_gemm, ag_wgrad, gemm_rs or gemm_ar": those that `is_wanted`, or all.
std::string operator_names(bool (*is_wanted)(const OperatorDef&) = nullptr);

inline bool is_operator(std::string_view op) { return find_operator(op) != nullptr; }
/// Of an unknown operator the default.
inline Dataflow flow_of(std::string_view op) {
  const OperatorDef* def = find_operator(op);
  return def == nullptr ? Dataflow{} : def->flow;
}
/// Rows of A travel before the product, which each rank has for itself; of the others, sums travel behind it.
inline bool gathers(std::string_view op) { return flow_of(op).gathers; }
/// The sums of a row come back to all ranks.
inline bool returns_to_all(std::string_view op) { return flow_of(op).passes == 2; }
/// The sums of a row stay with its owner.
inline bool stays_with_owner(std::string_view op) { return !gathers(op) && !returns_to_all(op); }

/// The first family of the operator for this purpose, or with this form; null if there is none.
const FamilyDef* find_family(std::string_view op, Purpose purpose);
const FamilyDef* find_family(std::string_view op, ClosedForm form);
/// None of an unknown family.
ClosedForm form_of(std::string_view op, std::string_view family);
/// A family of any operator cuts by degree; so does an unknown one.
bool has_degree(std::string_view family);
/// "hetero_fused_1d" of "hetero_fused_1d_rs".
std::string_view without_suffix(std::string_view op, std::string_view family);
/// Whether a schedule gives its operator's result; so does one that is of no family.
inline bool gives_result(const Schedule& schedule) {
  const FamilyDef* family = family_of(schedule);
  return family == nullptr || family->purpose == Purpose::plan;
}

/// Parameters, tables "off" and "cut", and the buffers that callers bind.
Schedule frame(const OpSpec& op, const OperatorDef& def, const FamilyDef& family, const FamilyOptions& options);

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
