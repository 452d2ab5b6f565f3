#include "overlace/operator.h"

#include <algorithm>
#include <iterator>
#include <mutex>
#include <utility>

#include "overlace/error.h"
#include "src/base/format.h"
#include "src/spec/families/families.h"
#include "src/spec/names.h"
#include "src/spec/operators.h"

namespace overlace::spec {
namespace {

/// Operators that were added while the program runs, behind those of the library.
class Added {
 public:
  static Added& get() {
    static Added all;
    return all;
  }
  void add(const OperatorDef& op) {
    const std::lock_guard lock(mutex_);
    list_.push_back(&op);
  }
  std::vector<const OperatorDef*> list() {
    const std::lock_guard lock(mutex_);
    return list_;
  }

 private:
  std::mutex mutex_;
  std::vector<const OperatorDef*> list_;
};

/// Parameters of every schedule, which no field may be called.
constexpr std::string_view kParams[] = {"M",         "N",     "K",         "G",        "q",      "align",  "bias",
                                        "ce_queues", "dtype", "out_dtype", "b_layout", "scales", "b_dtype"};

/// What a new operator lacks; empty if it is whole.
std::string missing(const OperatorDef& op) {
  if (op.name.empty()) return "a name";
  if (find_operator(op.name) != nullptr) return "a name of its own: this one is known";
  if (op.families.size() < 2 || op.families[0].name != kLibrary || op.families[1].name != kSerial)
    return "the families library and serial, first";
  for (const FamilyDef& family : op.families)
    if (family.make == nullptr) return base::format("make of family {}", family.name);
  for (const FieldDef& field : op.fields)
    if (std::find(std::begin(kParams), std::end(kParams), field.name) != std::end(kParams))
      return base::format("another name for field {}, which every schedule has", field.name);
  const auto has = [&](Role role) {
    return std::any_of(op.args.begin(), op.args.end(), [role](const Arg& arg) { return arg.role == role; });
  };
  if (!has(Role::input) && !has(Role::data)) return "an input";
  if (!has(Role::output)) return "an output";
  if (op.make_alone == nullptr) return "make_alone";
  return op.meaning == nullptr ? "meaning" : "";
}

/// Table "cut" of these blocks of rows, which follow each other.
std::vector<int64_t> cut_blocks(std::span<const int64_t> rows, const FamilyOptions& options) {
  std::vector<int64_t> cut = {0};
  for (const int64_t block : rows) {
    const std::vector<int64_t> parts = cut_evenly(block, options.degree, options.align);
    const int64_t first = cut.back();
    for (size_t s = 1; s < parts.size(); ++s) cut.push_back(first + parts[s]);
  }
  return cut;
}

Tables tables_of(const OpSpec& op, const OperatorDef& def, const FamilyOptions& options) {
  std::vector<int64_t> off = row_offsets(op);
  const bool is_cols = op.exchange == Exchange::cols;
  if (!def.flow.exchanges || is_cols) {
    std::vector<int64_t> rows;
    for (size_t p = 0; p + 1 < off.size(); ++p) rows.push_back(off[p + 1] - off[p]);
    Tables out = {{"cut", cut_blocks(rows, options)}, {"off", std::move(off)}};
    if (is_cols) out["block"] = block_offsets(op);
    return out;
  }
  const auto ranks = static_cast<size_t>(op.ranks), q = static_cast<size_t>(options.degree);
  std::vector<int64_t> blocks = splits(op), cut = cut_blocks(blocks, options), place(ranks * ranks * q), got = {0};
  for (size_t d = 0; d < ranks; ++d) {
    int64_t rows = 0;
    for (size_t s = 0; s < ranks; ++s) {
      const size_t first = (s * ranks + d) * q;
      for (size_t c = first; c < first + q; ++c) place[c] = rows + cut[c] - cut[first];
      rows += blocks[s * ranks + d];
    }
    got.push_back(got.back() + rows);
  }
  return {{"cut", std::move(cut)},
          {"got", std::move(got)},
          {"off", std::move(off)},
          {"place", std::move(place)},
          {"splits", std::move(blocks)}};
}

}  // namespace

void add_operator(const OperatorDef& op) {
  if (const std::string what = missing(op); !what.empty())
    throw_error(Errc::bad_schedule, base::format("operator '{}' lacks {}", op.name, what));
  Added::get().add(op);
}

std::vector<const OperatorDef*> operators() {
  std::vector<const OperatorDef*> out(built_in_operators().begin(), built_in_operators().end());
  const std::vector<const OperatorDef*> added = Added::get().list();
  out.insert(out.end(), added.begin(), added.end());
  return out;
}

const OperatorDef* find_operator(std::string_view name) {
  for (const OperatorDef* op : built_in_operators())
    if (op->name == name) return op;
  for (const OperatorDef* op : Added::get().list())
    if (op->name == name) return op;
  return nullptr;
}

const FamilyDef* find_family(const OperatorDef& op, std::string_view name) {
  const auto it =
      std::find_if(op.families.begin(), op.families.end(), [&](const FamilyDef& f) { return f.name == name; });
  return it == op.families.end() ? nullptr : &*it;
}

const FamilyDef* family_of(const Schedule& schedule) {
  const OperatorDef* op = find_operator(schedule.op);
  return op == nullptr ? nullptr : find_family(*op, without_suffix(schedule.op, schedule.family));
}

std::string operator_names(bool (*is_wanted)(const OperatorDef&)) {
  std::vector<std::string_view> names;
  for (const OperatorDef* op : operators())
    if (is_wanted == nullptr || is_wanted(*op)) names.push_back(op->name);
  std::string out;
  for (size_t i = 0; i < names.size(); ++i) {
    if (i > 0) out += i + 1 == names.size() ? " or " : ", ";
    out += names[i];
  }
  return out;
}

const FamilyDef* find_family(std::string_view op, Purpose purpose) {
  const OperatorDef* def = find_operator(op);
  if (def == nullptr) return nullptr;
  const auto it = std::find_if(def->families.begin(), def->families.end(),
                               [&](const FamilyDef& f) { return f.purpose == purpose; });
  return it == def->families.end() ? nullptr : &*it;
}

const FamilyDef* find_family(std::string_view op, ClosedForm form) {
  const OperatorDef* def = find_operator(op);
  if (def == nullptr) return nullptr;
  const auto it =
      std::find_if(def->families.begin(), def->families.end(), [&](const FamilyDef& f) { return f.form == form; });
  return it == def->families.end() ? nullptr : &*it;
}

const FamilyDef* first_by_rule(const OperatorDef& op) {
  const FamilyDef* first = nullptr;
  for (const FamilyDef& family : op.families)
    if (family.rule > 0 && (first == nullptr || family.rule < first->rule)) first = &family;
  return first;
}

ClosedForm form_of(std::string_view op, std::string_view family) {
  const OperatorDef* def = find_operator(op);
  const FamilyDef* found = def == nullptr ? nullptr : find_family(*def, family);
  return found == nullptr ? ClosedForm::none : found->form;
}

bool has_degree(std::string_view family) {
  for (const OperatorDef* op : operators())
    if (const FamilyDef* found = find_family(*op, family); found != nullptr) return found->has_degree;
  return true;
}

std::string_view without_suffix(std::string_view op, std::string_view family) {
  const OperatorDef* def = find_operator(op);
  if (def != nullptr && family.ends_with(def->suffix)) family.remove_suffix(def->suffix.size());
  return family;
}

std::string field_problem(const OperatorDef& def, const Params& fields) {
  constexpr std::string_view kTypes[] = {"an integer", "a number", "true or false", "a text"};
  for (const FieldDef& field : def.fields) {
    const auto found = fields.find(field.name);
    const auto type = static_cast<size_t>(field.type);
    if (found != fields.end() && found->second.index() == type) continue;
    return base::format("field '{}' is {}, wanted {}", field.name,
                        found == fields.end() ? "missing" : kTypes[found->second.index()], kTypes[type]);
  }
  for (const auto& given : fields) {
    const auto is_given = [&](const FieldDef& field) { return field.name == given.first; };
    if (std::none_of(def.fields.begin(), def.fields.end(), is_given))
      return base::format("{} has no field '{}'", def.name, given.first);
  }
  return "";
}

const std::vector<int64_t>* splits_table(const Schedule& schedule, const Task& task, int ranks) {
  const auto named = task.params.find("splits");
  const auto* name = named == task.params.end() ? nullptr : std::get_if<std::string>(&named->second);
  const auto found = name == nullptr ? schedule.tables.end() : schedule.tables.find(*name);
  if (found == schedule.tables.end()) return nullptr;
  const std::vector<int64_t>& table = found->second;
  const bool fits = std::ssize(table) == int64_t{ranks} * ranks &&
                    std::all_of(table.begin(), table.end(), [](int64_t rows) { return rows >= 0; });
  return fits ? &table : nullptr;
}

std::string splits_problem(const OperatorDef& def, const OpSpec& op) {
  const std::vector<int64_t>& all = op.splits;
  const bool is_cols = op.exchange == Exchange::cols;
  const auto wanted = static_cast<size_t>(op.ranks) * static_cast<size_t>(is_cols ? 1 : op.ranks);
  if (!def.flow.exchanges) return base::format("splits are given, wanted none: {} exchanges no rows", def.name);
  if (!op.row_offsets.empty()) return "row_offsets and splits are given, wanted one of them: splits say both";
  if (all.size() != wanted)
    return base::format("splits has {} entries, wanted {}: {} of {} ranks{}", all.size(), wanted,
                        is_cols ? "rows of each" : "from each", op.ranks, is_cols ? "" : " to each");
  int64_t sum = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i] < 0 || __builtin_add_overflow(sum, all[i], &sum))
      return base::format("splits[{}] is {}, wanted 0 or more, and a sum below 2^63", i, all[i]);
  }
  return sum == op.m ? "" : base::format("splits sum to {}, wanted M = {}", sum, op.m);
}

std::string factors_of(const OpSpec& op) {
  const DType b = dtype_of_b(op);
  const bool is_one = op.dtype == b && are_factors(op.dtype, b);
  return base::format("{}{}", dtype_name(op.dtype), is_one ? "" : base::format(" x {}", dtype_name(b)));
}

std::string scales_problem(const OperatorDef& def, const OpSpec& op) {
  const bool has_fp8 = is_fp8(op.dtype);
  if (op.scales != Scales::none && !takes_scales(def)) return base::format("{} takes no scales", def.name);
  if (has_fp8 != (op.scales != Scales::none))
    return base::format("scales are {}, wanted {} with operands of {}", name_of(op.scales),
                        has_fp8 ? "tensor or rows" : "none", factors_of(op));
  if (!are_factors(op.dtype, dtype_of_b(op)))
    return base::format("operands are {}, wanted {}", factors_of(op),
                        has_fp8 ? "e4m3 x e4m3, e4m3 x e5m2 or e5m2 x e4m3" : "two of one type");
  if (!has_fp8) return "";
  if (op.b_layout != BLayout::nk) return base::format("b_layout is kn, wanted nk with operands of {}", factors_of(op));
  if (op.k % kFp8Columns != 0)
    return base::format("K is {}, wanted a multiple of {} with operands of {}", op.k, kFp8Columns, factors_of(op));
  return "";
}

std::string blocks_problem(const OperatorDef& def, const OpSpec& op) {
  if (op.exchange == Exchange::rows) return op.blocks.empty() ? "" : "blocks are given, wanted none: no columns travel";
  if (!def.flow.exchanges) return base::format("exchange is cols, wanted rows: {} exchanges nothing", def.name);
  const auto [name, columns] = def.flow.gathers ? std::pair("K", op.k) : std::pair("N", op.n);
  if (op.blocks.empty() && columns % op.ranks != 0)
    return base::format("{} is {}, wanted a multiple of {}: as many columns for each rank", name, columns, op.ranks);
  int64_t sum = 0;
  for (size_t j = 0; j < op.blocks.size(); ++j) {
    const int64_t block = op.blocks[j];
    if (block < 1 || block % op.ranks != 0 || __builtin_add_overflow(sum, block, &sum))
      return base::format("blocks[{}] is {}, wanted a multiple of {} above 0: as many columns for each rank", j, block,
                          op.ranks);
  }
  return op.blocks.empty() || sum == columns ? ""
                                             : base::format("blocks sum to {}, wanted {} = {}", sum, name, columns);
}

Schedule frame(const OpSpec& op, const OperatorDef& def, const FamilyDef& family, const FamilyOptions& options) {
  const bool is_nk = op.b_layout == BLayout::nk;
  Schedule out;
  out.op = op.op;
  out.family = std::string(family.name) + std::string(def.suffix);
  out.params = {{"M", op.m},
                {"N", op.n},
                {"K", op.k},
                {"G", int64_t{op.ranks}},
                {"q", options.degree},
                {"align", options.align},
                {"ce_queues", options.ce_queues},
                {"dtype", std::string(dtype_name(op.dtype))},
                {"out_dtype", std::string(dtype_name(op.out_dtype))},
                {"b_layout", std::string(is_nk ? "nk" : "kn")},
                {"bias", op.bias}};
  out.params.insert(op.fields.begin(), op.fields.end());
  if (op.exchange != Exchange::rows) {
    out.params["exchange"] = std::string(name_of(op.exchange));
    out.consts["blocks"] = std::max<int64_t>(std::ssize(op.blocks), 1);
  }
  if (op.scales != Scales::none) out.params["scales"] = std::string(name_of(op.scales));
  if (dtype_of_b(op) != op.dtype) out.params["b_dtype"] = std::string(dtype_name(dtype_of_b(op)));
  out.tables = tables_of(op, def, options);
  for (const Arg& arg : def.args) {
    if (arg.role == Role::scale && op.scales == Scales::none) continue;
    if (arg.role == Role::scale) {
      std::vector<Expr> each = {arg.rows, arg.columns};
      if (op.scales == Scales::tensor) each = {1};
      out.buffers.push_back({std::string(arg.name), Space::argument, DType::fp32, std::move(each)});
      continue;
    }
    if (arg.role == Role::gathered || arg.role == Role::data || (arg.role == Role::bias && !op.bias)) continue;
    const ArgShape shape = shape_of(arg, op.exchange);
    const DType of_input = arg.has_layout ? dtype_of_b(op) : op.dtype;
    Buffer buffer{
        std::string(arg.name), Space::argument, arg.role == Role::input ? of_input : op.out_dtype, {shape.rows}};
    if (!shape.columns.empty()) buffer.shape.emplace_back(shape.columns);
    if (arg.has_layout && is_nk) std::reverse(buffer.shape.begin(), buffer.shape.end());
    out.buffers.push_back(std::move(buffer));
  }
  return out;
}

}  // namespace overlace::spec
