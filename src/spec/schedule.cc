#include "overlace/schedule.h"

#include <algorithm>
#include <utility>

#include "overlace/error.h"
#include "src/base/format.h"
#include "src/base/status.h"
#include "src/spec/costs.h"
#include "src/spec/families/families.h"
#include "src/spec/fused_pod.h"
#include "src/spec/names.h"
#include "src/spec/operators.h"

namespace overlace::spec {
namespace {

constexpr int64_t kMaxDegree = 1024;

std::vector<std::string> known_families(std::string_view op) {
  if (op == "ag_wgrad")
    return {"library", "serial", "shard_p2p", "hetero_unfused_1d", "uniform_fused_2d", "compute", "comm", "limit"};
  std::vector<std::string> names = {
      "library", "serial", "shard_p2p", "uniform_fused_1d", "hetero_fused_1d", "hetero_unfused_1d", "uniform_fused_2d"};
  // They broadcast what the groups before sum up: only gemm_ar broadcasts.
  if (op == "gemm_ar") names.insert(names.end(), {"grouped_fused_1d", "grouped_unfused_1d", "one_shot", "tma_slot"});
  if (op == "ag_gemm") names.insert(names.end(), {"k_slab", "one_shot"});
  if (op == "gemm_rs") names.insert(names.end(), {"one_shot", "tma_slot"});
  names.insert(names.end(), {"hierarchical", "compute", "comm", "limit"});
  return names;
}

bool has_degree(std::string_view family) {
  return family != "library" && family != "serial" && family != "shard_p2p" && family != "compute" &&
         family != "one_shot";
}

[[noreturn]] void refuse(const std::string& why) { throw_error(Errc::bad_schedule, why); }

void check_op(const OpSpec& op) {
  if (!is_operator(op.op)) refuse(base::format("operator is '{}', wanted {}", op.op, kOperators));
  if (op.m < 0 || op.n < 0 || op.k < 0 || op.ranks < 1) {
    refuse(base::format("{}: wanted M, N, K >= 0 and G >= 1", op.to_string()));
  }
  if (op.bias && op.op == "ag_wgrad") refuse(base::format("{}: ag_wgrad adds no bias", op.to_string()));
  if (op.activation != Activation::none && op.op != "ag_gemm")
    refuse(base::format("{}: {} has no activation", op.to_string(), op.op));
  if (op.activation == Activation::swiglu && op.n % 2 != 0)
    refuse(base::format("{}: swiglu takes pairs of columns, wanted an even N", op.to_string()));
  const auto& off = op.row_offsets;
  if (off.empty()) return;
  if (off.size() != static_cast<size_t>(op.ranks) + 1) {
    refuse(base::format("{}: row_offsets has {} entries, wanted {}", op.to_string(), off.size(), op.ranks + 1));
  }
  if (off.front() != 0 || off.back() != op.m || !std::is_sorted(off.begin(), off.end())) {
    refuse(base::format("{}: row_offsets go from {} to {}, wanted 0 to {} without a step back", op.to_string(),
                        off.front(), off.back(), op.m));
  }
}

/// At depth 2 the data signals of the call between imply what a credit says (S6 proves it); a credit lets depth 1 work
/// too and makes each buffer safe by itself.
void drop_credits(Schedule* schedule) {
  auto is_credit = [](const auto& item) { return item.signal == "credit"; };
  for (Task& task : schedule->tasks) {
    std::erase_if(task.waits, is_credit);
    std::erase_if(task.sets, is_credit);
  }
  std::erase_if(schedule->signals, [](const SignalDecl& signal) { return signal.name == "credit"; });
}

FamilyOptions check_options(const OpSpec& op, std::string_view family, int degree, const Params& options) {
  if (degree < 1 || degree > kMaxDegree) refuse(base::format("degree is {}, wanted 1 to {}", degree, kMaxDegree));
  FamilyOptions out;
  out.degree = has_degree(family) ? degree : 1;
  if (family == "k_slab") out.align_columns = kTileDepth;
  if (family == "tma_slot") out.align = kSlotTileRows, out.align_columns = slot_tile_cols(op);
  for (const auto& [name, value] : options) {
    if (name == "credits") {
      const bool* flag = std::get_if<bool>(&value);
      if (flag == nullptr) refuse("option 'credits' is no bool, wanted true or false");
      out.has_credits = *flag;
      continue;
    }
    int64_t* field = name == "align"        ? &out.align
                     : name == "align_n"    ? &out.align_columns
                     : name == "align_k"    ? &out.align_columns
                     : name == "ce_queues"  ? &out.ce_queues
                     : name == "own_degree" ? &out.own_degree
                     : name == "hosts"      ? &out.hosts
                                            : nullptr;
    if (field == nullptr) {
      refuse(base::format("unknown option '{}' (known: align, align_k, align_n, ce_queues, credits, hosts, own_degree)",
                          name));
    }
    constexpr int64_t kMaxOption = int64_t{1} << 30;
    const int64_t* number = std::get_if<int64_t>(&value);
    if (number == nullptr || *number < 1 || *number > kMaxOption) {
      const std::string got = number == nullptr ? "no integer" : std::to_string(*number);
      refuse(base::format("option '{}' is {}, wanted an integer from 1 to {}", name, got, kMaxOption));
    }
    *field = *number;
  }
  if (!has_degree(family) && out.own_degree != 1) out.own_degree = 1;
  if (out.degree % out.own_degree != 0) {
    refuse(base::format("own_degree is {}, wanted a divisor of the degree {}", out.own_degree, out.degree));
  }
  if (op.ranks % out.hosts != 0) {
    refuse(base::format("hosts is {}, wanted a divisor of the {} ranks: hosts of equal size", out.hosts, op.ranks));
  }
  if (op.op == "ag_wgrad" && out.hosts != 1)
    refuse(base::format("hosts is {}, wanted 1: ag_wgrad has flat schedules only", out.hosts));
  return out;
}

}  // namespace

std::string OpSpec::to_string() const {
  std::string out = base::format("{} M {} N {} K {} G {} {}", op, m, n, k, ranks, dtype_name(dtype));
  if (out_dtype != dtype) out += base::format(" -> {}", dtype_name(out_dtype));
  if (bias) out += " bias";
  if (activation != Activation::none) out += base::format(" {}", name_of(activation));
  if (!row_offsets.empty()) out += " ragged";
  return out;
}

std::vector<int64_t> row_offsets(const OpSpec& op) {
  if (!op.row_offsets.empty()) return op.row_offsets;
  std::vector<int64_t> out;
  const int64_t each = op.m / op.ranks, rest = op.m % op.ranks;
  for (int64_t p = 0; p <= op.ranks; ++p) out.push_back(p * each + std::min(p, rest));
  return out;
}

std::vector<std::string> families(std::string_view op) {
  if (!is_operator(op)) return {};
  return known_families(op);
}

Schedule make_schedule(const OpSpec& op, std::string_view family, int degree, const Params& options) {
  check_op(op);
  const auto names = known_families(op.op);
  if (std::find(names.begin(), names.end(), family) == names.end()) {
    std::string list;
    for (const std::string& name : names) list += (list.empty() ? "" : ", ") + name;
    refuse(base::format("{}: unknown family '{}' (known: {})", op.op, family, list));
  }
  const FamilyOptions checked = check_options(op, family, degree, options);
  if (op.ranks == 1) {
    Schedule out = frame(op, family, checked);
    if (family != "comm") add_plain_gemm(&out, op, "A", gathers(op.op) ? "C" : "Y");
    if (op.activation == Activation::swiglu) add_swiglu(&out, op);
    return out;
  }
  const bool is_measured = family == "serial" || family == "comm" || family == "limit";
  const bool is_hierarchical = family == "hierarchical" || (is_measured && checked.hosts > 1);
  Schedule out = is_hierarchical       ? make_hierarchical(op, family, checked)
                 : op.op == "ag_gemm"  ? make_ag_gemm(op, family, checked)
                 : op.op == "ag_wgrad" ? make_ag_wgrad(op, family, checked)
                 : op.op == "gemm_rs"  ? make_gemm_rs(op, family, checked)
                                       : make_gemm_ar(op, family, checked);
  if (op.activation == Activation::swiglu) add_swiglu(&out, op);
  if (!checked.has_credits) drop_credits(&out);
  return out;
}

}  // namespace overlace::spec
