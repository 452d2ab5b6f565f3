#include "overlace/schedule.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "overlace/error.h"
#include "src/base/format.h"
#include "src/base/status.h"
#include "src/spec/names.h"
#include "src/spec/operators.h"

namespace overlace::spec {
namespace {

constexpr int64_t kMaxDegree = 1024;

[[noreturn]] void refuse(const std::string& why) { throw_error(Errc::bad_schedule, why); }

void check_splits(const OpSpec& op, const OperatorDef& def) {
  if (const std::string why = blocks_problem(def, op); !why.empty())
    refuse(base::format("{}: {}", op.to_string(), why));
  if (op.splits.empty()) return;
  if (const std::string why = splits_problem(def, op); !why.empty())
    refuse(base::format("{}: {}", op.to_string(), why));
}

const OperatorDef& check_op(const OpSpec& op) {
  const OperatorDef* def = find_operator(op.op);
  if (def == nullptr) refuse(base::format("operator is '{}', wanted {}", op.op, operator_names()));
  if (op.m < 0 || op.n < 0 || op.k < 0 || op.ranks < 1) {
    refuse(base::format("{}: wanted M, N, K >= 0 and G >= 1", op.to_string()));
  }
  if (op.bias && std::none_of(def->args.begin(), def->args.end(), [](const Arg& a) { return a.role == Role::bias; }))
    refuse(base::format("{}: {} adds no bias", op.to_string(), op.op));
  if (op.activation != Activation::none && !def->takes_activation)
    refuse(base::format("{}: {} has no activation", op.to_string(), op.op));
  if (op.activation == Activation::swiglu && op.n % 2 != 0)
    refuse(base::format("{}: swiglu takes pairs of columns, wanted an even N", op.to_string()));
  if (const std::string what = scales_problem(*def, op); !what.empty())
    refuse(base::format("{}: {}", op.to_string(), what));
  if (const std::string what = field_problem(*def, op.fields); !what.empty())
    refuse(base::format("{}: {}", op.to_string(), what));
  if (const std::string why = def->refuse == nullptr ? "" : def->refuse(op); !why.empty())
    refuse(base::format("{}: {}", op.to_string(), why));
  check_splits(op, *def);
  const auto& off = op.row_offsets;
  if (off.empty()) return *def;
  if (off.size() != static_cast<size_t>(op.ranks) + 1) {
    refuse(base::format("{}: row_offsets has {} entries, wanted {}", op.to_string(), off.size(), op.ranks + 1));
  }
  if (off.front() != 0 || off.back() != op.m || !std::is_sorted(off.begin(), off.end())) {
    refuse(base::format("{}: row_offsets go from {} to {}, wanted 0 to {} without a step back", op.to_string(),
                        off.front(), off.back(), op.m));
  }
  return *def;
}

const FamilyDef& check_family(const OperatorDef& def, std::string_view name) {
  if (const FamilyDef* family = find_family(def, name); family != nullptr) return *family;
  std::string list;
  for (const FamilyDef& family : def.families) list += base::format("{}{}", list.empty() ? "" : ", ", family.name);
  refuse(base::format("{}: unknown family '{}' (known: {})", def.name, name, list));
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

FamilyOptions check_options(const OpSpec& op, const OperatorDef& def, const FamilyDef& family, int degree,
                            const Params& options) {
  if (degree < 1 || degree > kMaxDegree) refuse(base::format("degree is {}, wanted 1 to {}", degree, kMaxDegree));
  FamilyOptions out;
  out.degree = family.has_degree ? degree : 1;
  if (op.scales != Scales::none) out.align_columns = kFp8Columns;
  if (op.scales == Scales::rows) out.align = kScaleRows;
  if (family.set_defaults != nullptr) family.set_defaults(op, &out);
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
  if (!family.has_degree && out.own_degree != 1) out.own_degree = 1;
  if (out.degree % out.own_degree != 0) {
    refuse(base::format("own_degree is {}, wanted a divisor of the degree {}", out.own_degree, out.degree));
  }
  if (op.ranks % out.hosts != 0) {
    refuse(base::format("hosts is {}, wanted a divisor of the {} ranks: hosts of equal size", out.hosts, op.ranks));
  }
  if (!def.knows_hosts && out.hosts != 1)
    refuse(base::format("hosts is {}, wanted 1: {} has flat schedules only", out.hosts, op.op));
  return out;
}

/// What takes no scales: fused kernels, and rows that cross to other hosts once.
void check_scales(const OpSpec& op, const FamilyDef& family, const FamilyOptions& options) {
  if (op.scales == Scales::none) return;
  using enum ClosedForm;
  if (family.form == slab_kernel || family.form == tile_kernel || family.form == small_m_kernel ||
      family.form == tracked_kernel)
    throw_error(Errc::not_supported,
                base::format("{}: family {} is one kernel, which multiplies no {}; wanted a family of library GEMMs, "
                             "such as library",
                             op.to_string(), family.name, factors_of(op)));
  const bool is_flat = family.form != hosts && options.hosts == 1;
  if (op.scales == Scales::rows && gathers(op.op) && op.ranks > 1 && !is_flat)
    throw_error(Errc::not_supported,
                base::format("{}: family {} with hosts {}, wanted a flat family and hosts 1: scales of rows do not "
                             "travel from host to host",
                             op.to_string(), family.name, options.hosts));
}

/// Offsets of torch.tensor_split, parts + 1 entries.
std::vector<int64_t> evenly(int64_t extent, int64_t parts) {
  std::vector<int64_t> out;
  const int64_t each = extent / parts, rest = extent % parts;
  for (int64_t p = 0; p <= parts; ++p) out.push_back(p * each + std::min(p, rest));
  return out;
}

}  // namespace

std::string OpSpec::to_string() const {
  std::string out = base::format("{} M {} N {} K {} G {} {}", op, m, n, k, ranks, factors_of(*this));
  if (out_dtype != dtype) out += base::format(" -> {}", dtype_name(out_dtype));
  if (bias) out += " bias";
  if (activation != Activation::none) out += base::format(" {}", name_of(activation));
  if (scales != Scales::none) out += base::format(" scales {}", name_of(scales));
  if (!row_offsets.empty()) out += " ragged";
  if (exchange != Exchange::rows) out += base::format(" {}", name_of(exchange));
  for (const int64_t columns : blocks) out += base::format(" {}", columns);
  if (!splits.empty()) out += " splits";
  for (const auto& [name, value] : fields) out += base::format(" {} {}", name, text_of(value));
  return out;
}

std::string key_of(const OpSpec& problem) {
  // By all members: one that is added does not compile before it is named here.
  const auto& [op, m, n, k, ranks, dtype, out_dtype, b_layout, bias, gathered, activation, row_offsets, splits,
               exchange, blocks, fields, scales, b_dtype] = problem;
  std::string out =
      base::format("{} {} {} {} {} {} {} {} {} {} {} {}", op, m, n, k, ranks, dtype_name(dtype), dtype_name(out_dtype),
                   b_layout == BLayout::nk ? "nk" : "kn", bias, gathered, name_of(activation), name_of(exchange));
  if (scales != Scales::none) out += base::format(" scales {}", name_of(scales));
  if (const DType b = b_dtype.value_or(dtype); b != dtype) out += base::format(" b {}", dtype_name(b));
  for (const std::vector<int64_t>* list : {&row_offsets, &splits, &blocks}) {
    out += base::format(" {}:", list->size());
    for (const int64_t number : *list) out += base::format(" {}", number);
  }
  for (const auto& [name, value] : fields) {
    const std::string text = text_of(value);
    out += base::format(" {}={}:{}", name, text.size(), text);
  }
  return out;
}

std::vector<int64_t> row_offsets(const OpSpec& op) {
  if (!op.row_offsets.empty()) return op.row_offsets;
  if (op.splits.empty()) return evenly(op.m, op.ranks);
  std::vector<int64_t> out = {0};
  const int per_rank = op.exchange == Exchange::cols ? 1 : op.ranks;
  for (size_t s = 0; s < static_cast<size_t>(op.ranks); ++s) {
    const auto row = op.splits.begin() + static_cast<std::ptrdiff_t>(s) * per_rank;
    out.push_back(std::accumulate(row, row + per_rank, out.back()));
  }
  return out;
}

std::vector<int64_t> block_offsets(const OpSpec& op) {
  if (op.blocks.empty()) return {0, gathers(op.op) ? op.k : op.n};
  std::vector<int64_t> out = {0};
  for (const int64_t columns : op.blocks) out.push_back(out.back() + columns);
  return out;
}

std::vector<int64_t> splits(const OpSpec& op) {
  if (!op.splits.empty()) return op.splits;
  const std::vector<int64_t> off = row_offsets(op);
  std::vector<int64_t> out;
  for (size_t s = 0; s + 1 < off.size(); ++s) {
    const std::vector<int64_t> parts = evenly(off[s + 1] - off[s], op.ranks);
    for (size_t d = 0; d + 1 < parts.size(); ++d) out.push_back(parts[d + 1] - parts[d]);
  }
  return out;
}

std::vector<std::string> families(std::string_view op) {
  std::vector<std::string> out;
  if (const OperatorDef* def = find_operator(op); def != nullptr)
    for (const FamilyDef& family : def->families) out.emplace_back(family.name);
  return out;
}

Schedule make_schedule(const OpSpec& op, std::string_view family, int degree, const Params& options) {
  const OperatorDef& def = check_op(op);
  const FamilyDef& chosen = check_family(def, family);
  const FamilyOptions checked = check_options(op, def, chosen, degree, options);
  check_scales(op, chosen, checked);
  Schedule out = frame(op, def, chosen, checked);
  if (op.ranks == 1) {
    def.make_alone(&out, op, chosen.purpose);
  } else {
    chosen.make(&out, op, checked);
  }
  if (def.complete != nullptr) def.complete(&out, op);
  if (!checked.has_credits) drop_credits(&out);
  return out;
}

Schedule make_bound(const OpSpec& op, Purpose purpose, const Params& options) {
  check_op(op);
  const FamilyDef* family = find_family(op.op, purpose);
  if (family == nullptr)
    throw_error(Errc::bad_schedule, base::format("{} has no family that measures {}", op.op, name_of(purpose)));
  return make_schedule(op, family->name, 1, options);
}

}  // namespace overlace::spec
