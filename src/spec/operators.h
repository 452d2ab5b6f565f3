// What is asked of operators by name, answered by their values, and of tasks.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "overlace/operator.h"
#include "src/base/ceil_div_pod.h"

namespace overlace::spec {

/// "ag_gemm, ag_wgrad, gemm_rs or gemm_ar": those that `is_wanted`, or all.
std::string operator_names(bool (*is_wanted)(const OperatorDef&) = nullptr);

inline bool is_operator(std::string_view op) { return find_operator(op) != nullptr; }
/// The dataflow of an operator; an unknown one has the default.
inline Dataflow flow_of(std::string_view op) {
  const OperatorDef* def = find_operator(op);
  return def == nullptr ? Dataflow{} : def->flow;
}
/// Rows of A travel before the GEMM, which each rank has for itself; of the others, sums travel behind it.
inline bool gathers(std::string_view op) { return flow_of(op).gathers; }
/// The sums of a row come back to all ranks.
inline bool returns_to_all(std::string_view op) { return flow_of(op).passes == 2; }
/// Rows, or columns, go from each rank to each.
inline bool exchanges(std::string_view op) { return flow_of(op).exchanges; }
/// The sums of a row stay with its owner.
inline bool stays_with_owner(std::string_view op) { return !gathers(op) && !exchanges(op) && !returns_to_all(op); }
/// Rows of the GEMM of one rank, where they are dealt evenly: all of them, but where rows are exchanged.
inline int64_t rows_of_product(const OpSpec& op) {
  return exchanges(op.op) ? base::ceil_div(op.m, static_cast<int64_t>(op.ranks)) : op.m;
}

/// The first family of the operator for this purpose, or with this form; null if there is none.
const FamilyDef* find_family(std::string_view op, Purpose purpose);
const FamilyDef* find_family(std::string_view op, ClosedForm form);
/// The first that tier rule tries; null if it tries none.
const FamilyDef* first_by_rule(const OperatorDef& op);
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

/// The schedule of the first family for this purpose, which measures a bound. Throws ScheduleError if there is none.
Schedule make_bound(const OpSpec& op, Purpose purpose, const Params& options = {});
inline constexpr std::string_view kPurposeNames[] = {"plan", "compute", "comm", "limit"};
inline std::string_view name_of(Purpose purpose) { return kPurposeNames[static_cast<size_t>(purpose)]; }

/// Equal for equal problems alone: what plans and schedules are kept under.
std::string key_of(const OpSpec& op);

/// Parameters, tables "off" and "cut", and the buffers that callers bind.
Schedule frame(const OpSpec& op, const OperatorDef& def, const FamilyDef& family, const FamilyOptions& options);

/// What is wrong with the fields of a problem: one that is missing, of another type, or not known; empty if nothing is.
std::string field_problem(const OperatorDef& def, const Params& fields);

/// What is wrong with OpSpec::scales and the types and sizes that go with them; empty if nothing is.
std::string scales_problem(const OperatorDef& def, const OpSpec& op);
/// What is wrong with OpSpec::splits, which are given; empty if nothing is.
std::string splits_problem(const OperatorDef& def, const OpSpec& op);
/// What is wrong with OpSpec::exchange and OpSpec::blocks; empty if nothing is.
std::string blocks_problem(const OperatorDef& def, const OpSpec& op);

/// The shape of an argument in this exchange.
inline ArgShape shape_of(const Arg& arg, Exchange exchange) {
  return exchange == Exchange::cols && !arg.cols.rows.empty() ? arg.cols : ArgShape{arg.rows, arg.columns};
}

inline bool has_empty_shard(const OpSpec& op) {
  const std::vector<int64_t> off = row_offsets(op);
  return std::adjacent_find(off.begin(), off.end()) != off.end();
}

/// Whether a task is a part of the schedule's fused kernel.
inline bool is_part(const Task& task) { return task.wait_by == WaitBy::kernel; }

/// Whether the schedule's kernel is one of few rows, through which the weights stream.
bool takes_one_shot(const Schedule& schedule);
/// Whether its kernel counts tiles that it stores, for copy lanes that wait for the counts.
bool is_tracked(const Schedule& schedule);

/// Rows of the longest shard.
int64_t longest_shard(const Schedule& schedule);

/// Whether a gemm task's a is stored (depth, rows), so that the sum is over rows of the region.
inline bool sums_rows(const Task& task) {
  const auto it = task.params.find("a_layout");
  return it != task.params.end() && it->second == Param(std::string("km"));
}

/// The table that "splits" of an all_to_all task names: rows from rank s to rank d at s * ranks + d. Null
/// where there is no such table of ranks * ranks entries, none negative.
const std::vector<int64_t>* splits_table(const Schedule& schedule, const Task& task, int ranks);

/// Parameter "activation" of a schedule, or of the task that applies it.
inline Activation activation_of(const Params& params) {
  const auto it = params.find("activation");
  return it != params.end() && it->second == Param(std::string("swiglu")) ? Activation::swiglu : Activation::none;
}
/// Parameter "scales" of a schedule, or of the gemm task that reads them behind its other operands: those of the rows
/// of a, then those of the columns of the result.
inline Scales scales_of(const Params& params) {
  const auto it = params.find("scales");
  if (it == params.end()) return Scales::none;
  return it->second == Param(std::string("rows")) ? Scales::rows : Scales::tensor;
}
/// Regions with scales that a gemm task reads.
inline size_t num_scales(const Task& task) { return scales_of(task.params) == Scales::none ? 0 : 2; }
/// The operator takes scales of its factors.
inline bool takes_scales(const OperatorDef& op) {
  return std::any_of(op.args.begin(), op.args.end(), [](const Arg& arg) { return arg.role == Role::scale; });
}
/// Whether products take factors of these types: of one, or of fp8, of which e5m2 is multiplied by e4m3 alone (cuBLASLt
/// has no other product of it).
inline bool are_factors(DType a, DType b) { return a == b ? a != DType::e5m2 : is_fp8(a) && is_fp8(b); }
inline DType dtype_of_b(const OpSpec& op) { return op.b_dtype.value_or(op.dtype); }
/// "e5m2 x e4m3", or the one type of both factors.
std::string factors_of(const OpSpec& op);
/// Parameter "b_dtype" of a schedule, which is there where B's type is not that of A.
inline std::string_view dtype_of_b(const Params& params) {
  auto it = params.find("b_dtype");
  if (it == params.end()) it = params.find("dtype");
  const std::string* const name = it == params.end() ? nullptr : std::get_if<std::string>(&it->second);
  return name == nullptr ? std::string_view() : *name;
}
/// Bytes of an element of fp8, whose products want rows of a multiple of so many elements.
inline constexpr int64_t kFp8Columns = 16;
/// Rows whose scales fill 16 bytes, at which chunks begin unless they are told otherwise.
inline constexpr int64_t kScaleRows = 4;
/// Whether a task of kind reduce also normalizes the rows that it makes: parameter "norm".
inline bool has_norm(const Task& task) {
  const auto it = task.params.find("norm");
  return it != task.params.end() && it->second == Param(true);
}
/// Parameter "exchange" of a schedule.
inline Exchange exchange_of(const Params& params) {
  const auto it = params.find("exchange");
  return it != params.end() && it->second == Param(std::string("cols")) ? Exchange::cols : Exchange::rows;
}
/// Columns of sums that become one of the result.
inline int64_t columns_per_result(const Params& params) { return activation_of(params) == Activation::swiglu ? 2 : 1; }

}  // namespace overlace::spec
